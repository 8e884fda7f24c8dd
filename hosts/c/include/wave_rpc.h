/*
 * wave_rpc.h: serve gRPC from C, behind a Wave agent that terminates it.
 *
 * The program gets requests from queues, and sees neither sockets nor HTTP/2:
 *
 *     clients ==gRPC==> wave agent --rpc SOCKET --listen ADDRESS ==queues==> this library
 *
 * A server has workers. Each worker belongs to one thread at a time. The thread polls it for events
 * (wave_rpc_worker_poll), answers them, publishes the answers (wave_rpc_worker_publish), and waits when there are no
 * events (wave_rpc_worker_wait). Requests and replies are encoded protobuf messages, which this library does not
 * decode. docs/guide/rpc-c.md walks through examples/kv.c.
 *
 * Errors. Functions return WAVE_RPC_OK (0), WAVE_RPC_YES (1) if they answer a question, or a negative number, and have
 * then done nothing. wave_rpc_error() describes the last failure of the calling thread in words.
 *
 * Handles. They are created by this library, and stay valid for the life of the process. For a handle that is null, of
 * another kind, or of a stopped server, functions return a negative number. Any other value is undefined behaviour,
 * like any wrong pointer.
 *
 * Threads. Functions of a server may be called by any thread, those of a worker by one thread at a time, and different
 * workers by different threads at once. If another thread is using the handle, functions return WAVE_RPC_BUSY; there is
 * never a race.
 *
 * Memory. Arguments are read during the call and not kept. The memory that an event points to belongs to the worker,
 * and does not change until the next wave_rpc_worker_poll of that worker.
 */
#ifndef WAVE_RPC_H
#define WAVE_RPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. A program and a library of different versions do not work together. */
#define WAVE_RPC_VERSION 1

/* The version that the library was built with. With the shared library, compare it with WAVE_RPC_VERSION. */
uint32_t wave_rpc_version(void);

/* ---- Return values ---- */

#define WAVE_RPC_OK 0             /* done; or: no, no event */
#define WAVE_RPC_YES 1            /* yes; or: an event was returned */
#define WAVE_RPC_BAD_HANDLE (-1)  /* the handle is null, or of another kind */
#define WAVE_RPC_BAD_ARGUMENT (-2) /* an argument has a value that the function does not take */
#define WAVE_RPC_NOT_OPEN (-3)    /* the call is over: it was ended, or its agent has gone */
#define WAVE_RPC_BLOCKED (-4)     /* the client must read earlier replies first: poll, and try again later */
#define WAVE_RPC_TOO_LATE (-5)    /* headers may be sent only once, and before the first reply */
#define WAVE_RPC_TOO_LONG (-6)    /* more bytes than can be sent at once (72 MiB); the call is unchanged */
#define WAVE_RPC_STOPPED (-7)     /* the server was stopped */
#define WAVE_RPC_BUSY (-8)        /* another thread is using the handle */
#define WAVE_RPC_SYSTEM (-9)      /* the system provided no socket, memory or thread */
#define WAVE_RPC_BAD_AGENT (-10)  /* the agent wrote invalid data, and is disconnected */
#define WAVE_RPC_INTERNAL (-11)   /* a bug in this library */

/* A description of the last failure of the calling thread, in English. Never null; empty if there was none. Valid until
 * the thread's next call of this library. */
const char *wave_rpc_error(void);

/* ---- A server ---- */

/* wave_rpc_method.streams: the sides that send any number of messages. A side without the flag sends one. */
#define WAVE_RPC_CLIENT_STREAMS 1
#define WAVE_RPC_SERVER_STREAMS 2

/* A method. Every field but the path may be zero. */
typedef struct wave_rpc_method {
    const char *path;          /* "/package.Service/Method" */
    uint32_t streams;          /* WAVE_RPC_CLIENT_STREAMS, WAVE_RPC_SERVER_STREAMS, both, or 0 */
    uint32_t slo_us;           /* latency objective of its requests, in microseconds; 0: none */
    uint16_t slo_field;        /* the request's protobuf field (a varint) that holds that latency; 0: none */
    uint8_t request_class;     /* class by which its requests are steered, unless they ask for another */
    uint8_t request_class_max; /* the highest class that a request may ask for */
} wave_rpc_method;

/* wave_rpc_options.flags: a waiting worker yields its CPU. For workers that share CPUs. */
#define WAVE_RPC_SHARE_CPU 1

/* Options of a server. Start from WAVE_RPC_OPTIONS_INIT: a field that is zero has its default. */
typedef struct wave_rpc_options {
    size_t size;                  /* sizeof(wave_rpc_options) */
    const char *socket;           /* the path where agents attach; required */
    const wave_rpc_method *methods; /* the methods served; an event names its method by the index here */
    size_t methods_count;
    const uint32_t *allowed_uids; /* users whose agents may attach, besides our own and root */
    size_t allowed_uids_count;
    const uint8_t *descriptors;   /* a serialized google.protobuf.FileDescriptorSet, for reflection */
    size_t descriptors_bytes;
    uint16_t workers;             /* 1 by default, 240 at most */
    uint16_t reserved;            /* zero */
    uint32_t calls;               /* most open calls; 1024 by default */
    uint32_t ring_entries;        /* entries of each worker's queues, 56 bytes each: a power of two; 1024 by default */
    uint32_t spin_us;             /* how long the worker and its agent poll for work before they sleep;
                                     0: 5 for the worker, 50 for the agent. A worker sleeps at once
                                     if most calls arrive later than that */
    uint32_t flags;               /* WAVE_RPC_SHARE_CPU, or 0 */
} wave_rpc_options;

#define WAVE_RPC_OPTIONS_INIT { sizeof(wave_rpc_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Handles of a server and of a worker. */
typedef struct wave_rpc_server wave_rpc_server;
typedef struct wave_rpc_worker wave_rpc_worker;

/* Starts a server, and stores its handle in *server. The server listens for an agent at once, on a thread of the
 * library. An agent may attach, go, and be replaced by another one at any time.
 *
 * Fails with WAVE_RPC_BAD_ARGUMENT (invalid options) or WAVE_RPC_SYSTEM (the socket: another server listens there, or
 * no permission); *server is then unchanged. */
int32_t wave_rpc_server_start(const wave_rpc_options *options, wave_rpc_server **server);

/* Stores the handle of worker number `index`, from 0 to workers - 1, in *worker. No call reaches a server unless every
 * one of its workers is polled. Fails with WAVE_RPC_BAD_ARGUMENT if there is no such worker. */
int32_t wave_rpc_server_worker(wave_rpc_server *server, uint16_t index, wave_rpc_worker **worker);

/* Whether an agent is attached: WAVE_RPC_YES or WAVE_RPC_OK. */
int32_t wave_rpc_server_has_agent(wave_rpc_server *server);

/* Stops a server: its socket is removed, its agent is disconnected, and clients with open calls get UNAVAILABLE from
 * the agent. Waiting workers are woken. Every function of a worker then returns WAVE_RPC_STOPPED, and the first one
 * that does frees the worker's memory. To lose no reply, end all calls first. */
int32_t wave_rpc_server_stop(wave_rpc_server *server);

/* ---- Events ---- */

/* Identifies a call of a worker. Each value is used once, and is never 0, so a call that is over is recognized. */
typedef uint64_t wave_rpc_call;

/* wave_rpc_event.kind */
#define WAVE_RPC_BEGIN 1      /* a call begins, often with its first message. It has to be ended once: by
                                 wave_rpc_worker_finish, or by a reply with WAVE_RPC_END */
#define WAVE_RPC_MESSAGE 2    /* a further message from the client */
#define WAVE_RPC_HALF_CLOSE 3 /* the client sends nothing more; only if no message had WAVE_RPC_END */
#define WAVE_RPC_CANCEL 4     /* the call was cancelled: the client or the agent has gone, the deadline has passed, or
                                 too many calls wait for their clients. It still has to be ended; if the agent has
                                 gone, it is over already (WAVE_RPC_NOT_OPEN) */

/* wave_rpc_event.flags, and those of replies (wave_rpc_worker_message) */
#define WAVE_RPC_HAS_MESSAGE 1 /* there is a message, which may be empty */
#define WAVE_RPC_END 2         /* the client sends nothing more; in a reply: the last one, which ends with OK */
#define WAVE_RPC_COMPRESSED 4  /* it arrived compressed; in a reply: compress it, if the client accepts that */

/* wave_rpc_event.remaining_ns: the call has no deadline. */
#define WAVE_RPC_FOREVER UINT64_MAX

/* An event. The memory behind the pointers belongs to the worker, and is valid until its next wave_rpc_worker_poll. */
typedef struct wave_rpc_event {
    uint32_t kind;          /* WAVE_RPC_BEGIN, ... */
    uint32_t flags;         /* WAVE_RPC_HAS_MESSAGE, ... */
    wave_rpc_call call;     /* the call concerned */
    uint16_t method;        /* BEGIN: the index of its method */
    uint8_t request_class;  /* BEGIN: the class under which it was steered */
    uint8_t reserved;       /* zero */
    int32_t code;           /* CANCEL: the reason, a gRPC code: CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE,
                               RESOURCE_EXHAUSTED (too many calls wait for their clients) */
    uint64_t remaining_ns;  /* BEGIN: time left until the deadline, or WAVE_RPC_FOREVER */
    const uint8_t *message; /* with WAVE_RPC_HAS_MESSAGE: its bytes; otherwise null */
    size_t message_bytes;
    const uint8_t *metadata; /* BEGIN: for wave_rpc_event_metadata */
    size_t metadata_bytes;
} wave_rpc_event;

/* A pair of metadata. In a pair that the program passes, `key` ends with a zero byte, and key_bytes is ignored. In a
 * pair that it gets, `key` has key_bytes bytes and no zero byte after them. Keys consist of lower-case letters, digits,
 * `_`, `-` and `.`; a value is ASCII, 0x20 to 0x7e, or any bytes if its key ends with "-bin". */
typedef struct wave_rpc_pair {
    const char *key;
    size_t key_bytes;
    const void *value;
    size_t value_bytes;
} wave_rpc_pair;

/* Gets the next event: WAVE_RPC_YES and *event, or WAVE_RPC_OK if there is none. Never waits. */
int32_t wave_rpc_worker_poll(wave_rpc_worker *worker, wave_rpc_event *event);

/* Publishes replies and waits for an event, after a poll that found none. It first polls for at most spin_us (one look
 * per call of this function), or not at all if calls rarely arrive that soon; then it sleeps until the agent wakes it,
 * for 100 ms at most. It sometimes returns without an event: poll, and wait again. It also tells the agent which
 * calls wait for messages of their clients: a worker that never calls it holds a place for each of them, and may get no
 * other calls. (A worker has no descriptor to wait on, because the descriptor that wakes it changes with its agent. A
 * program with its own event loop runs workers on separate threads.) */
int32_t wave_rpc_worker_wait(wave_rpc_worker *worker);

/* Gets pair number `index` of the metadata of a WAVE_RPC_BEGIN: WAVE_RPC_YES and *pair, or WAVE_RPC_OK if there are
 * fewer pairs. Only for the event of the worker's last poll. */
int32_t wave_rpc_event_metadata(const wave_rpc_event *event, size_t index, wave_rpc_pair *pair);

/* Whether the call was cancelled: WAVE_RPC_YES or WAVE_RPC_OK. Cheap enough to ask every few microseconds of a long
 * call; the WAVE_RPC_CANCEL event follows regardless. */
int32_t wave_rpc_worker_is_cancelled(wave_rpc_worker *worker, wave_rpc_call call);

/* Stores the time left until the call's deadline in *remaining_ns: 0 if it has passed, or WAVE_RPC_FOREVER. */
int32_t wave_rpc_worker_remaining(wave_rpc_worker *worker, wave_rpc_call call, uint64_t *remaining_ns);

/* ---- Replies: calls may be answered in any order, and several at a time ---- */

/* Sends `pairs_count` pairs of metadata, once, before the first reply. */
int32_t wave_rpc_worker_headers(wave_rpc_worker *worker, wave_rpc_call call, const wave_rpc_pair *pairs,
                                size_t pairs_count);

/* Sends a reply. With WAVE_RPC_END in `flags`, it is the last, and the call ends with OK; with WAVE_RPC_COMPRESSED, it
 * is compressed. Returns WAVE_RPC_BLOCKED if the client must read earlier replies first: nothing was sent; poll, and
 * try again. */
int32_t wave_rpc_worker_message(wave_rpc_worker *worker, wave_rpc_call call, const void *message, size_t message_bytes,
                                uint32_t flags);

/* Ends a call with a status: `code` is a gRPC code (0 is OK), `message` a text that ends with a zero byte, or null, and
 * `trailers` points to `trailers_count` pairs of trailing metadata. */
int32_t wave_rpc_worker_finish(wave_rpc_worker *worker, wave_rpc_call call, int32_t code, const char *message,
                               const wave_rpc_pair *trailers, size_t trailers_count);

/* Publishes all answers since the last publish, and so makes them visible to the agent. Publish after each reply for
 * the least delay, or after several for the least work. wave_rpc_worker_wait publishes as well. */
int32_t wave_rpc_worker_publish(wave_rpc_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
