/*
 * A small key-value service in memory, in C, for any gRPC client. Its protobuf:
 *
 *     syntax = "proto3";
 *     package kv;
 *     message Pair { bytes key = 1; bytes value = 2; }
 *     service Kv {
 *       rpc Put(Pair) returns (Pair);          // the old pair, or NOT_FOUND if the key is new
 *       rpc Get(Pair) returns (Pair);          // the pair with this key, or NOT_FOUND
 *       rpc List(Pair) returns (stream Pair);  // the pairs whose keys begin with this key
 *     }
 *
 * kv SOCKET serves until SIGINT or SIGTERM, and then prints counts of its calls. See docs/guide/rpc-c.md.
 */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wave_rpc.h"

enum { PUT, GET, LIST };
enum { PAIRS_MAX = 4096, STREAMS_MAX = 64 };
/* Status codes of gRPC. */
enum { INVALID_ARGUMENT = 3, NOT_FOUND = 5, RESOURCE_EXHAUSTED = 8, UNIMPLEMENTED = 12 };

/* ---- The few parts of protobuf that a Pair needs ---- */

struct bytes {
    const uint8_t *at;
    size_t count;
};

struct pair {
    struct bytes key, value;
};

/* Reads a varint. Returns its length in bytes, or 0 if it is invalid. */
static size_t read_varint(struct bytes from, uint64_t *number)
{
    *number = 0;
    for (size_t at = 0; at < from.count && at < 10; at++) {
        *number |= (uint64_t)(from.at[at] & 0x7f) << (7 * at);
        if (!(from.at[at] & 0x80))
            return at + 1;
    }
    return 0;
}

static size_t write_varint(uint8_t *to, uint64_t number)
{
    size_t count = 0;
    do {
        to[count++] = (uint8_t)(number & 0x7f) | (number > 0x7f ? 0x80 : 0);
        number >>= 7;
    } while (number);
    return count;
}

/* Reads a Pair, which must have no unknown fields. Returns whether it is valid. */
static int read_pair(struct bytes from, struct pair *pair)
{
    memset(pair, 0, sizeof *pair);
    while (from.count) {
        uint8_t tag = from.at[0];
        uint64_t length;
        from.at++, from.count--;
        size_t used = read_varint(from, &length);
        if (!used || length > from.count - used)
            return 0;
        struct bytes field = { from.at + used, (size_t)length };
        from.at += used + field.count, from.count -= used + field.count;
        if (tag == (1 << 3 | 2))
            pair->key = field;
        else if (tag == (2 << 3 | 2))
            pair->value = field;
        else
            return 0;
    }
    return 1;
}

/* Writes a Pair into allocated memory, which the caller frees. Returns null if no memory is left. */
static uint8_t *write_pair(struct pair pair, size_t *count)
{
    uint8_t *message = malloc(pair.key.count + pair.value.count + 22);
    *count = 0;
    if (!message)
        return NULL;
    const struct bytes fields[] = { pair.key, pair.value };
    for (size_t field = 0; field < 2; field++) {
        message[(*count)++] = (uint8_t)((field + 1) << 3 | 2);
        *count += write_varint(message + *count, fields[field].count);
        if (fields[field].count)
            memcpy(message + *count, fields[field].at, fields[field].count);
        *count += fields[field].count;
    }
    return message;
}

/* ---- The store: pairs in the order of their insertion ---- */

static struct pair pairs[PAIRS_MAX];
static size_t pairs_count;

static int same(struct bytes one, struct bytes other)
{
    return one.count == other.count && (!one.count || !memcmp(one.at, other.at, one.count));
}

static int begins_with(struct bytes key, struct bytes prefix)
{
    key.count = key.count < prefix.count ? key.count : prefix.count;
    return same(key, prefix);
}

static struct pair *find(struct bytes key)
{
    for (size_t at = 0; at < pairs_count; at++)
        if (same(pairs[at].key, key))
            return &pairs[at];
    return NULL;
}

/* Makes a copy. `at` is null only if no memory is left. */
static struct bytes copy(struct bytes from)
{
    uint8_t *at = malloc(from.count + 1);
    if (at && from.count)
        memcpy(at, from.at, from.count);
    return (struct bytes){ at, from.count };
}

static void drop(struct bytes bytes)
{
    free((void *)bytes.at);
}

/* ---- Calls ---- */

/* A List in progress, which is blocked until its client reads more. */
struct stream {
    wave_rpc_call call; /* 0: free */
    struct bytes prefix;
    size_t next;
};

static struct stream streams[STREAMS_MAX];
static unsigned long ended, cancelled;

static void finish(wave_rpc_worker *worker, wave_rpc_call call, int code, const char *text)
{
    /* If the agent has gone, the call is over already. */
    int done = wave_rpc_worker_finish(worker, call, code, text, NULL, 0);
    if (done != WAVE_RPC_OK && done != WAVE_RPC_NOT_OPEN)
        fprintf(stderr, "kv: cannot end a call: %s\n", wave_rpc_error());
    ended++;
}

/* Sends a Pair. Returns the result of wave_rpc_worker_message. */
static int send_pair(wave_rpc_worker *worker, wave_rpc_call call, struct pair pair, unsigned flags)
{
    size_t count;
    uint8_t *message = write_pair(pair, &count);
    if (!message)
        return WAVE_RPC_SYSTEM;
    int sent = wave_rpc_worker_message(worker, call, message, count, flags);
    free(message);
    return sent;
}

static void reply(wave_rpc_worker *worker, wave_rpc_call call, struct pair pair)
{
    if (send_pair(worker, call, pair, WAVE_RPC_END) == WAVE_RPC_OK)
        ended++;
    else
        finish(worker, call, RESOURCE_EXHAUSTED, "cannot send the reply");
}

static void put(wave_rpc_worker *worker, wave_rpc_call call, struct pair pair)
{
    struct pair *found = find(pair.key);
    struct bytes value = copy(pair.value);
    if (found && value.at) {
        struct bytes before = found->value;
        found->value = value;
        reply(worker, call, (struct pair){ found->key, before });
        drop(before);
        return;
    }
    struct bytes key = copy(pair.key);
    if (!key.at || !value.at || pairs_count == PAIRS_MAX) {
        drop(key);
        drop(value);
        finish(worker, call, RESOURCE_EXHAUSTED, "no room for another pair");
        return;
    }
    pairs[pairs_count++] = (struct pair){ key, value };
    finish(worker, call, NOT_FOUND, "the key is new; the pair was stored");
}

static void end_stream(struct stream *stream)
{
    drop(stream->prefix);
    memset(stream, 0, sizeof *stream);
}

/* Sends as many pairs as the client has room for. Returns whether some are left to send. */
static int go_on(wave_rpc_worker *worker, struct stream *stream)
{
    for (; stream->next < pairs_count; stream->next++) {
        if (!begins_with(pairs[stream->next].key, stream->prefix))
            continue;
        int sent = send_pair(worker, stream->call, pairs[stream->next], 0);
        if (sent == WAVE_RPC_BLOCKED)
            return 1;
        if (sent != WAVE_RPC_OK) {
            finish(worker, stream->call, RESOURCE_EXHAUSTED, "cannot send a reply");
            end_stream(stream);
            return 0;
        }
    }
    finish(worker, stream->call, 0, NULL);
    end_stream(stream);
    return 0;
}

static struct stream *find_stream(wave_rpc_call call)
{
    for (size_t at = 0; at < STREAMS_MAX; at++)
        if (streams[at].call == call)
            return &streams[at];
    return NULL;
}

static void list(wave_rpc_worker *worker, wave_rpc_call call, struct pair pair)
{
    struct stream *stream = find_stream(0);
    struct bytes prefix = copy(pair.key);
    if (!stream || !prefix.at) {
        drop(prefix);
        finish(worker, call, RESOURCE_EXHAUSTED, "too many List calls are open");
        return;
    }
    *stream = (struct stream){ call, prefix, 0 };
    go_on(worker, stream);
}

static void handle(wave_rpc_worker *worker, const wave_rpc_event *event)
{
    struct stream *stream;
    switch (event->kind) {
    case WAVE_RPC_BEGIN: {
        struct pair pair;
        struct bytes message = { event->message, event->message_bytes };
        /* Each of these methods takes one message, which the agent delivers together with the beginning of the call. */
        if (!(event->flags & WAVE_RPC_HAS_MESSAGE) || !(event->flags & WAVE_RPC_END))
            finish(worker, event->call, UNIMPLEMENTED, "the method takes one message");
        else if (!read_pair(message, &pair))
            finish(worker, event->call, INVALID_ARGUMENT, "the request is not a valid Pair");
        else if (event->method == PUT)
            put(worker, event->call, pair);
        else if (event->method == GET) {
            struct pair *found = find(pair.key);
            if (found)
                reply(worker, event->call, *found);
            else
                finish(worker, event->call, NOT_FOUND, "there is no such key");
        } else
            list(worker, event->call, pair);
        break;
    }
    case WAVE_RPC_CANCEL:
        stream = find_stream(event->call);
        if (stream)
            end_stream(stream);
        cancelled++;
        finish(worker, event->call, event->code, "the call was cancelled");
        break;
    default: /* a late message of a call that has ended */
        break;
    }
}

/* ---- The program ---- */

static volatile sig_atomic_t is_over;

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

static int fail(const char *what)
{
    fprintf(stderr, "kv: cannot %s: %s\n", what, wave_rpc_error());
    return 1;
}

int main(int count, char **arguments)
{
    if (count != 2) {
        fprintf(stderr, "usage: kv SOCKET\n");
        return 2;
    }
    struct sigaction action = { .sa_handler = end };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    const wave_rpc_method methods[] = {
        [PUT] = { .path = "/kv.Kv/Put" },
        [GET] = { .path = "/kv.Kv/Get" },
        [LIST] = { .path = "/kv.Kv/List", .streams = WAVE_RPC_SERVER_STREAMS },
    };
    wave_rpc_options options = WAVE_RPC_OPTIONS_INIT;
    options.socket = arguments[1];
    options.methods = methods;
    options.methods_count = sizeof methods / sizeof *methods;
    options.flags = WAVE_RPC_SHARE_CPU;
    wave_rpc_server *server;
    wave_rpc_worker *worker;
    if (wave_rpc_server_start(&options, &server))
        return fail("start");
    if (wave_rpc_server_worker(server, 0, &worker))
        return fail("take the worker");
    fprintf(stderr, "kv: serving at %s\n", arguments[1]);

    while (!is_over) {
        wave_rpc_event event;
        int came = wave_rpc_worker_poll(worker, &event);
        if (came < 0)
            return fail("poll");
        if (came)
            handle(worker, &event);
        for (size_t at = 0; at < STREAMS_MAX; at++)
            if (streams[at].call)
                go_on(worker, &streams[at]);
        if (came ? wave_rpc_worker_publish(worker) : wave_rpc_worker_wait(worker))
            return fail("answer");
    }
    if (wave_rpc_server_stop(server))
        return fail("stop");
    /* This call frees the worker's memory. */
    wave_rpc_event event;
    if (wave_rpc_worker_poll(worker, &event) != WAVE_RPC_STOPPED)
        return fail("end");
    for (size_t at = 0; at < STREAMS_MAX; at++)
        if (streams[at].call)
            end_stream(&streams[at]);
    while (pairs_count--) {
        drop(pairs[pairs_count].key);
        drop(pairs[pairs_count].value);
    }
    printf("%lu calls ended, %lu of them cancelled\n", ended, cancelled);
    return 0;
}
