/* Work: print each job and commit it: ./worker ENDPOINT */
#include <stdio.h>
#include <zmq.h>
#include "keys.h"

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s ENDPOINT\n", argv[0]);
        return 2;
    }
    void *context = zmq_ctx_new();
    void *rep = zmq_socket(context, ZMQ_REP);
    if (use_keys(rep) != 0)
        return 1;
    if (zmq_connect(rep, argv[1]) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], zmq_strerror(zmq_errno()));
        return 1;
    }
    for (;;) {
        zmq_msg_t job;
        zmq_msg_init(&job);
        if (zmq_msg_recv(&job, rep, 0) < 0) {
            fprintf(stderr, "%s\n", zmq_strerror(zmq_errno()));
            return 1;
        }
        printf("%.*s\n", (int)zmq_msg_size(&job), (char *)zmq_msg_data(&job));
        fflush(stdout);
        zmq_msg_close(&job);
        zmq_send(rep, "done", 4, 0); /* the answer commits the job and is its result */
    }
}
