/* Checks the errors for wrong handles, wrong arguments and a stopped server. Usage: misuse SOCKET */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wave_rpc.h"

/* The function returns this code, and sets an error text if it fails. */
#define EXPECT(code, call)                                                                             \
    do {                                                                                               \
        int answered = (call);                                                                         \
        if (answered != (code) || (answered < 0 && !*wave_rpc_error())) {                              \
            fprintf(stderr, "misuse.c:%d: %s: %d (%s), not %d\n", __LINE__, #call, answered,           \
                    wave_rpc_error(), (code));                                                         \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

/* Gives another thread a turn: a tight loop of calls could keep the handle from it. */
static void rest(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void *wait_until_stopped(void *worker)
{
    int waited;
    while ((waited = wave_rpc_worker_wait(worker)) == WAVE_RPC_OK || waited == WAVE_RPC_BUSY)
        rest();
    EXPECT(WAVE_RPC_STOPPED, waited);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    EXPECT(WAVE_RPC_VERSION, (int)wave_rpc_version());
    EXPECT(0, (int)strlen(wave_rpc_error()));

    wave_rpc_server *server = NULL, *second = NULL;
    wave_rpc_worker *worker = NULL;
    wave_rpc_method method = { .path = "/a.A/A" };
    wave_rpc_options options = WAVE_RPC_OPTIONS_INIT;
    const wave_rpc_options fresh = WAVE_RPC_OPTIONS_INIT;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(NULL, &server));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, NULL));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server)); /* no socket */
    options.socket = arguments[1];
    options.size = 8;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    options.size = fresh.size;
    options.methods_count = 1;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server)); /* null methods */
    options.methods = &method;
    method.path = "no path";
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    method.path = "/a.\xff/A";
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    method.path = NULL;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    method.path = "/a.A/A";
    method.streams = 4;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    method.streams = 0;
    options.flags = 2;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    options.flags = WAVE_RPC_SHARE_CPU;
    options.workers = 241;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    options.workers = 2;
    options.ring_entries = 3;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    options.ring_entries = 0;
    options.allowed_uids_count = (size_t)-1;
    options.allowed_uids = &options.calls;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_start(&options, &server));
    options.allowed_uids_count = 0;
    options.socket = "/proc/none/a.sock";
    EXPECT(WAVE_RPC_SYSTEM, wave_rpc_server_start(&options, &server));
    if (server)
        return 1; /* failures leave it alone */
    options.socket = arguments[1];
    EXPECT(WAVE_RPC_OK, wave_rpc_server_start(&options, &server));
    EXPECT(WAVE_RPC_SYSTEM, wave_rpc_server_start(&options, &second)); /* its socket is in use */

    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_server_worker(NULL, 0, &worker));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_worker(server, 0, NULL));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_server_worker(server, 2, &worker));
    EXPECT(WAVE_RPC_OK, wave_rpc_server_worker(server, 1, &worker));
    EXPECT(WAVE_RPC_OK, wave_rpc_server_has_agent(server));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_server_has_agent((wave_rpc_server *)worker));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_server_has_agent((wave_rpc_server *)((char *)server + 1)));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_server_stop(NULL));

    wave_rpc_event event;
    wave_rpc_pair pair = { .key = "a", .value = "b", .value_bytes = 1 };
    uint64_t remaining_ns;
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_worker_poll(NULL, &event));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_worker_poll((wave_rpc_worker *)server, &event));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_poll(worker, NULL));
    EXPECT(WAVE_RPC_OK, wave_rpc_worker_poll(worker, &event));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_worker_wait(NULL));
    EXPECT(WAVE_RPC_OK, wave_rpc_worker_wait(worker));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_worker_publish(NULL));
    EXPECT(WAVE_RPC_OK, wave_rpc_worker_publish(worker));
    EXPECT(WAVE_RPC_BAD_HANDLE, wave_rpc_worker_message(NULL, 1, "", 0, 0));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_message(worker, 1, NULL, 1, 0));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_message(worker, 1, "", 0, WAVE_RPC_HAS_MESSAGE));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_headers(worker, 1, NULL, 1));
    pair.key = "grpc-own";
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_headers(worker, 1, &pair, 1));
    pair.key = NULL;
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_headers(worker, 1, &pair, 1));
    pair.key = "a";
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_finish(worker, 1, 17, NULL, NULL, 0));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_finish(worker, 1, -1, NULL, NULL, 0));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_finish(worker, 1, 0, "\xff", NULL, 0));
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_worker_remaining(worker, 1, NULL));
    const wave_rpc_call never[] = { 0, 1, (uint64_t)1 << 32, UINT64_MAX };
    for (size_t at = 0; at < sizeof never / sizeof *never; at++) {
        EXPECT(WAVE_RPC_NOT_OPEN, wave_rpc_worker_message(worker, never[at], "", 0, WAVE_RPC_END));
        EXPECT(WAVE_RPC_NOT_OPEN, wave_rpc_worker_headers(worker, never[at], &pair, 1));
        EXPECT(WAVE_RPC_NOT_OPEN, wave_rpc_worker_finish(worker, never[at], 0, NULL, &pair, 1));
        EXPECT(WAVE_RPC_NOT_OPEN, wave_rpc_worker_is_cancelled(worker, never[at]));
        EXPECT(WAVE_RPC_NOT_OPEN, wave_rpc_worker_remaining(worker, never[at], &remaining_ns));
    }
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_event_metadata(NULL, 0, &pair));
    memset(&event, 0, sizeof event);
    EXPECT(WAVE_RPC_BAD_ARGUMENT, wave_rpc_event_metadata(&event, 0, NULL));
    EXPECT(WAVE_RPC_OK, wave_rpc_event_metadata(&event, 0, &pair));

    /* Two threads use one worker; then the server is stopped while one of them waits. */
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_until_stopped, worker))
        return 1;
    while (wave_rpc_worker_publish(worker) != WAVE_RPC_BUSY)
        rest();
    wave_rpc_worker *other;
    EXPECT(WAVE_RPC_OK, wave_rpc_server_worker(server, 0, &other));
    EXPECT(WAVE_RPC_OK, wave_rpc_worker_poll(other, &event));
    EXPECT(WAVE_RPC_OK, wave_rpc_server_stop(server));
    pthread_join(thread, NULL);
    EXPECT(WAVE_RPC_STOPPED, wave_rpc_server_stop(server));
    EXPECT(WAVE_RPC_STOPPED, wave_rpc_server_has_agent(server));
    EXPECT(WAVE_RPC_STOPPED, wave_rpc_server_worker(server, 0, &worker));
    EXPECT(WAVE_RPC_STOPPED, wave_rpc_worker_poll(other, &event));
    EXPECT(WAVE_RPC_STOPPED, wave_rpc_worker_finish(other, 1, 0, NULL, NULL, 0));

    /* The socket is free again. */
    EXPECT(WAVE_RPC_OK, wave_rpc_server_start(&options, &second));
    EXPECT(WAVE_RPC_OK, wave_rpc_server_stop(second));
    for (uint16_t at = 0; at < 2; at++)
        EXPECT(WAVE_RPC_STOPPED, wave_rpc_server_worker(second, at, &worker));
    return 0;
}
