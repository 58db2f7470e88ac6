/* Everything that a stream has, old and new, without a hole: ./replay SUBSCRIBERS REPLAYS STREAM [COUNT]
 *
 * The forwarder has envelope = "full", so each message ends with a frame NUMBER TIME. Subscribe first; at the
 * first live message ask for all before it, and again wherever a number is missing: this socket has lost some.
 * Prints NUMBER TOPIC PAYLOAD, a line each, until COUNT of them, or for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "keys.h"

enum { MOST_FRAMES = 16 };

static zmq_msg_t frames[MOST_FRAMES];
static long long known, left = -1;

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
    exit(1);
}

/* Receive the next frame of a message; return whether others follow. */
static int receive(void *socket, zmq_msg_t *frame)
{
    zmq_msg_close(frame);
    zmq_msg_init(frame);
    if (zmq_msg_recv(frame, socket, 0) < 0)
        die("receive");
    return zmq_msg_more(frame);
}

/* Return a frame as a terminated text; the caller frees it. */
static char *text_of(zmq_msg_t *frame)
{
    char *text = calloc(1, zmq_msg_size(frame) + 1);
    return memcpy(text, zmq_msg_data(frame), zmq_msg_size(frame));
}

static long long number_of(zmq_msg_t *frame)
{
    char *text = text_of(frame);
    long long number = atoll(text);
    free(text);
    return number;
}

static void show(long long number, zmq_msg_t *topic, zmq_msg_t *payload)
{
    known = number;
    printf("%lld %.*s %.*s\n", number, (int) zmq_msg_size(topic), (char *) zmq_msg_data(topic),
           (int) zmq_msg_size(payload), (char *) zmq_msg_data(payload));
    fflush(stdout);
    if (left > 0 && --left == 0)
        exit(0);
}

/* Read a message of an answer: a head NUMBER TIME FRAMES, then FRAMES frames. Return whether others follow. */
static int show_past(void *past, zmq_msg_t *head, long long before)
{
    char *text = text_of(head);
    long long number = 0;
    int count = 0, more = 1;
    sscanf(text, "%lld %*s %d", &number, &count);
    free(text);
    for (int at = 0; at < count; at++)
        more = receive(past, &frames[at < MOST_FRAMES ? at : MOST_FRAMES - 1]);
    if (number > known && number < before && count > 1)
        show(number, &frames[0], &frames[1]);
    return more;
}

/* Ask for messages behind the last known one; an answer may have only some of them. */
static void ask(void *past, const char *stream, long long before)
{
    char wanted[64];
    zmq_msg_t told, head;
    zmq_msg_init(&told);
    zmq_msg_init(&head);
    int size = snprintf(wanted, sizeof wanted, "{\"after\": %lld}", known);
    if (zmq_send(past, stream, strlen(stream), ZMQ_SNDMORE) < 0 || zmq_send(past, wanted, size, 0) < 0)
        die("ask");
    int more = receive(past, &told); /* JSON {count, after, gone, newest}, or ERROR */
    char *answer = text_of(&told);
    const char *after = strstr(answer, "\"after\":");
    while (more && (more = receive(past, &head), after))
        more = show_past(past, &head, before);
    if (!after) {
        fprintf(stderr, "%.*s\n", (int) zmq_msg_size(&head), (char *) zmq_msg_data(&head));
        exit(1);
    }
    long long end = atoll(after + strlen("\"after\":")); /* what is gone, if anything is, is passed over */
    if (end > known)
        known = end < before ? end : before - 1;
    free(answer);
    zmq_msg_close(&told);
    zmq_msg_close(&head);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s SUBSCRIBERS REPLAYS STREAM [COUNT]\n", argv[0]);
        return 2;
    }
    if (argc > 4)
        left = atoll(argv[4]);
    void *context = zmq_ctx_new();
    void *live = zmq_socket(context, ZMQ_SUB), *past = zmq_socket(context, ZMQ_REQ);
    if (use_keys(live) || use_keys(past))
        return 1;
    if (zmq_connect(live, argv[1]) || zmq_setsockopt(live, ZMQ_SUBSCRIBE, "", 0) || zmq_connect(past, argv[2]))
        die("connect");
    for (int at = 0; at < MOST_FRAMES; at++)
        zmq_msg_init(&frames[at]);
    for (;;) {
        zmq_msg_t live_frames[MOST_FRAMES];
        int count = 0, more = 1;
        while (more) {
            if (count < MOST_FRAMES)
                zmq_msg_init(&live_frames[count++]);
            more = receive(live, &live_frames[count - 1]);
        }
        long long number = number_of(&live_frames[count - 1]);
        while (known < number - 1)
            ask(past, argv[3], number);
        if (number > known && count > 2)
            show(number, &live_frames[0], &live_frames[1]);
        while (count > 0)
            zmq_msg_close(&live_frames[--count]);
    }
}
