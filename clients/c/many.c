/* Several brokers, with plain sockets: ./many push|ask|work ENDPOINT...
 *
 *   push  each line of stdin becomes a job, at one broker or another
 *   ask   each line of stdin becomes a question; its answer is printed
 *   work  print each job of any broker and commit it
 *
 * docs/many-brokers.md says why each option is set.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>
#include "keys.h"

enum { ANSWER_WITHIN = 5000, TRIES = 20 }; /* milliseconds; questions until one is given up */

static void set(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static char *line(char *text, int size)
{
    if (!fgets(text, size, stdin))
        return NULL;
    text[strcspn(text, "\n")] = 0;
    return text;
}

/* Receive one message of one or two frames; returns the number of frames, or -1. */
static int receive(void *socket, char frames[2][1024])
{
    int count = 0, more = 1;
    size_t size = sizeof more;
    while (more) {
        char *frame = frames[count < 2 ? count : 1];
        int length = zmq_recv(socket, frame, 1023, 0);
        if (length < 0)
            return -1;
        frame[length < 1023 ? length : 1023] = 0;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
        count++;
    }
    return count;
}

static void push(void *socket)
{
    char text[1024];
    while (line(text, sizeof text))
        if (zmq_send(socket, text, strlen(text), 0) < 0)
            fprintf(stderr, "%s: %s\n", text, zmq_strerror(zmq_errno()));
}

/* Ask until a broker answers: the next one each time. With one id the job runs once. */
static int ask(void *socket, const char *id, const char *text, char frames[2][1024])
{
    char headers[128];
    int length = snprintf(headers, sizeof headers, "{\"id\": \"%s\"}", id);
    for (int tries = 0; tries < TRIES; tries++) {
        if (zmq_send(socket, "", 0, ZMQ_SNDMORE) < 0)
            continue; /* no broker is connected */
        zmq_send(socket, headers, length, ZMQ_SNDMORE);
        zmq_send(socket, text, strlen(text), 0);
        int count = receive(socket, frames);
        if (count == 2 && strstr(frames[1], "\"UNAVAILABLE\""))
            usleep(200000); /* it stops, or has no MongoDB */
        else if (count > 0)
            return count;
    }
    return -1;
}

static void ask_all(void *socket)
{
    char text[1024], id[64], frames[2][1024];
    for (int number = 0; line(text, sizeof text); number++) {
        snprintf(id, sizeof id, "%ld-%d-%d", (long)time(NULL), (int)getpid(), number);
        int count = ask(socket, id, text, frames);
        puts(count < 0 ? "no answer" : frames[count == 2]);
        fflush(stdout);
    }
}

static void work(void *socket)
{
    char frames[2][1024];
    while (receive(socket, frames) > 0) {
        puts(frames[0]);
        fflush(stdout);
        zmq_send(socket, "done", 4, 0); /* to the broker that sent the job */
    }
}

int main(int argc, char **argv)
{
    const char *names[] = {"push", "ask", "work"};
    const int types[] = {ZMQ_PUSH, ZMQ_REQ, ZMQ_REP};
    int role = 0;
    while (role < 3 && argc > 2 && strcmp(argv[1], names[role]))
        role++;
    if (role == 3 || argc < 3) {
        fprintf(stderr, "usage: %s push|ask|work ENDPOINT...\n", argv[0]);
        return 2;
    }
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, types[role]);
    set(socket, ZMQ_IMMEDIATE, 1); /* nothing is queued for a broker that is not connected */
    set(socket, ZMQ_SNDHWM, 10);
    set(socket, ZMQ_SNDTIMEO, ANSWER_WITHIN);
    set(socket, ZMQ_LINGER, 10000); /* don't wait for a dead broker for ever */
    if (types[role] == ZMQ_REQ) {
        set(socket, ZMQ_REQ_RELAXED, 1);   /* ask again without an answer */
        set(socket, ZMQ_REQ_CORRELATE, 1); /* and take no late answer for that of another question */
        set(socket, ZMQ_RCVTIMEO, ANSWER_WITHIN);
        set(socket, ZMQ_HEARTBEAT_IVL, 1000); /* a host that has vanished is noticed */
        set(socket, ZMQ_HEARTBEAT_TIMEOUT, 3000);
    }
    if (use_keys(socket) != 0)
        return 1;
    for (int i = 2; i < argc; i++)
        if (zmq_connect(socket, argv[i]) != 0) {
            fprintf(stderr, "%s: %s\n", argv[i], zmq_strerror(zmq_errno()));
            return 1;
        }
    void (*const roles[])(void *) = {push, ask_all, work};
    roles[role](socket);
    zmq_close(socket);
    zmq_ctx_term(context);
    return 0;
}
