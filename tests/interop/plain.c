/* Plain ZeroMQ programs as any textbook has them; each knows only an endpoint,
 * and keys if CURVE_SERVER_KEY, CURVE_PUBLIC_KEY and CURVE_SECRET_KEY name some.
 *
 *   plain ask ENDPOINT TEXT...     REQ: print each reply
 *   plain answer ENDPOINT          REP: reply "C:" and the request
 *   plain answer ENDPOINT told     the same, but print the request and wait for a line on stdin first
 *   plain push ENDPOINT TEXT...    PUSH each
 *   plain pull ENDPOINT            PULL: print each message
 *   plain work ENDPOINT COMMIT     PULL a receipt and a job, print the job, wait for a line on stdin,
 *                                  PUSH that it is done
 *   plain publish ENDPOINT TEXT    PUB the text every 20 ms
 *   plain subscribe ENDPOINT TOPIC SUB: print the first message
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

static int receive(void *socket, char *text, int size)
{
    int length = zmq_recv(socket, text, size - 1, 0);
    if (length >= 0)
        text[length] = 0;
    return length;
}

static void use_keys(void *socket)
{
    const char *names[] = {"CURVE_SERVER_KEY", "CURVE_PUBLIC_KEY", "CURVE_SECRET_KEY"};
    const int options[] = {ZMQ_CURVE_SERVERKEY, ZMQ_CURVE_PUBLICKEY, ZMQ_CURVE_SECRETKEY};
    for (int i = 0; i < 3; i++)
        if (getenv(names[i]) && zmq_setsockopt(socket, options[i], getenv(names[i]), 41))
            _exit(3);
}

static void wait_until_told(const char *text)
{
    char line[100];
    puts(text);
    if (!fgets(line, sizeof line, stdin))
        _exit(0);
}

int main(int argc, char **argv)
{
    const char *names[] = {"ask", "answer", "push", "pull", "publish", "subscribe", "work"};
    const int types[] = {ZMQ_REQ, ZMQ_REP, ZMQ_PUSH, ZMQ_PULL, ZMQ_PUB, ZMQ_SUB, ZMQ_PULL};
    char text[1024], reply[1100], receipt[256];
    int role = 0;
    if (argc < 3)
        return 2;
    while (strcmp(argv[1], names[role]))
        if (++role == 7)
            return 2;
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, types[role]);
    if (types[role] == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, argv[3], strlen(argv[3]));
    use_keys(socket);
    if (zmq_connect(socket, argv[2]))
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    switch (types[role]) {
    case ZMQ_REQ:
        for (int i = 3; i < argc; i++) {
            zmq_send(socket, argv[i], strlen(argv[i]), 0);
            receive(socket, text, sizeof text);
            puts(text);
        }
        break;
    case ZMQ_REP:
        while (receive(socket, text, sizeof text) >= 0) {
            if (argc > 3)
                wait_until_told(text);
            int length = snprintf(reply, sizeof reply, "C:%s", text);
            zmq_send(socket, reply, length, 0);
        }
        break;
    case ZMQ_PUSH:
        for (int i = 3; i < argc; i++)
            zmq_send(socket, argv[i], strlen(argv[i]), 0);
        break;
    case ZMQ_PULL:
        if (role == 6) {
            void *commit = zmq_socket(context, ZMQ_PUSH);
            use_keys(commit);
            if (zmq_connect(commit, argv[3]))
                return 1;
            for (;;) {
                int length = receive(socket, receipt, sizeof receipt);
                receive(socket, text, sizeof text);
                wait_until_told(text);
                zmq_send(commit, "COMMIT", 6, ZMQ_SNDMORE);
                zmq_send(commit, receipt, length, 0);
            }
        }
        while (receive(socket, text, sizeof text) >= 0)
            puts(text);
        break;
    case ZMQ_PUB:
        while (zmq_send(socket, argv[3], strlen(argv[3]), 0) >= 0)
            usleep(20000);
        break;
    case ZMQ_SUB:
        receive(socket, text, sizeof text);
        puts(text);
        break;
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    return 0;
}
