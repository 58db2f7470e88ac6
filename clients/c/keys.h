/* Keys for a door that wants CURVE: the pair in the file SLUICEMQ_KEY_FILE, which `sluicemq key new --out FILE`
 * makes, and the broker's public key in SLUICEMQ_SERVER_KEY. Without them the socket stays as it is. */
#include <stdio.h>
#include <stdlib.h>
#include <zmq.h>

static int use_keys(void *socket)
{
    const char *path = getenv("SLUICEMQ_KEY_FILE"), *server_key = getenv("SLUICEMQ_SERVER_KEY");
    char line[256], public_key[41] = "", secret_key[41] = "";
    if (!path || !server_key)
        return 0;
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        return -1;
    }
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "public_key = \"%40[^\"]", public_key);
        sscanf(line, "secret_key = \"%40[^\"]", secret_key);
    }
    fclose(file);
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_key, 41) != 0
        || zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public_key, 41) != 0
        || zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret_key, 41) != 0) {
        fprintf(stderr, "%s: %s\n", path, zmq_strerror(zmq_errno()));
        return -1;
    }
    return 0;
}
