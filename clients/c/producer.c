/* Push each argument as one job: ./producer ENDPOINT PAYLOAD... */
#include <stdio.h>
#include <string.h>
#include <zmq.h>
#include "keys.h"

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s ENDPOINT PAYLOAD...\n", argv[0]);
        return 2;
    }
    void *context = zmq_ctx_new();
    void *push = zmq_socket(context, ZMQ_PUSH);
    if (use_keys(push) != 0)
        return 1;
    if (zmq_connect(push, argv[1]) != 0) {
        fprintf(stderr, "%s: %s\n", argv[1], zmq_strerror(zmq_errno()));
        return 1;
    }
    for (int i = 2; i < argc; i++)
        zmq_send(push, argv[i], strlen(argv[i]), 0);
    zmq_close(push);
    zmq_ctx_term(context); /* returns when everything is sent */
    return 0;
}
