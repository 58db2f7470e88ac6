/* Plain SUB sockets that only count, so that a broker is measured and not its subscribers.
 *
 *     cc -O2 -o subscribers subscribers.c -lzmq
 *     ./subscribers tcp://127.0.0.1:6002 10 50000
 *
 * One thread, one I/O thread of libzmq. Says "ready" when each socket hears the probes, then how many other
 * messages all had together, and CLOCK_MONOTONIC at the last of them, in nanoseconds. It ends when each had
 * as many as are told here, or when none came for five seconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define MOST 64
#define SILENCE 5000 /* ms */
#define AT_ONCE 1000

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* One message: 1, or 0 if it was a probe, or -1 if there is none. */
static int take(void *socket)
{
    zmq_msg_t frame;
    int first = 1, probe = 0, more = 1;
    zmq_msg_init(&frame);
    while (more) {
        if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            return -1;
        }
        if (first)
            probe = zmq_msg_size(&frame) == 5 && !memcmp(zmq_msg_data(&frame), "probe", 5);
        first = 0;
        more = zmq_msg_more(&frame);
    }
    zmq_msg_close(&frame);
    return !probe;
}

int main(int argc, char **argv)
{
    int count = argc > 3 ? atoi(argv[2]) : 0, heard = 0, none = 0;
    long long each = argc > 3 ? atoll(argv[3]) : 0, got = 0, last = 0;
    int hears[MOST] = {0};
    void *context = zmq_ctx_new();
    zmq_pollitem_t items[MOST];
    if (count < 1 || count > MOST) {
        fprintf(stderr, "usage: subscribers ENDPOINT SOCKETS MESSAGES\n");
        return 2;
    }
    for (int at = 0; at < count; at++) {
        void *socket = zmq_socket(context, ZMQ_SUB);
        zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
        if (zmq_connect(socket, argv[1])) {
            fprintf(stderr, "subscribers: %s: %s\n", argv[1], zmq_strerror(zmq_errno()));
            return 1;
        }
        items[at] = (zmq_pollitem_t){socket, 0, ZMQ_POLLIN, 0};
    }
    while (got < count * each && zmq_poll(items, count, SILENCE) > 0)
        for (int at = 0; at < count; at++) {
            int one = 0, had = 0;
            if (!(items[at].revents & ZMQ_POLLIN))
                continue;
            while (had < AT_ONCE && (one = take(items[at].socket)) >= 0) {
                had++;
                got += one;
                if (!hears[at]) {
                    hears[at] = 1;
                    if (++heard == count) {
                        puts("ready");
                        fflush(stdout);
                    }
                }
            }
            last = now();
        }
    printf("%lld %lld\n", got, last);
    return 0;
}
