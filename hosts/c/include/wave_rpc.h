/*
 * wave_rpc.h: serving gRPC from C, where a Wave agent terminates it.
 *
 * The program sees requests in queues, and neither sockets nor HTTP/2:
 *
 *     clients ==gRPC==> wave agent --rpc SOCKET --listen ADDRESS ==queues==> this library
 *
 * A server has workers. Each worker belongs to one thread at a time, which asks it what came (wave_rpc_worker_poll),
 * answers, makes the answers travel (wave_rpc_worker_publish), and waits where nothing came (wave_rpc_worker_wait).
 * Requests and replies are the bytes of protobuf messages, which this library does not look at. docs/guide/rpc-c.md has
 * a walk through examples/kv.c.
 *
 * Errors. Functions return WAVE_RPC_OK (0), WAVE_RPC_YES (1) where they answer a question, or a negative number, and
 * have then done nothing. wave_rpc_error() says in words what the last failure of the calling thread was.
 *
 * Handles. They are given out by this library, and stay valid for the life of the process: one that is null, of another
 * kind, or of a server that was stopped is told by a negative number. Any other value is undefined behaviour, as any
 * wrong pointer.
 *
 * Threads. Functions of a server may be called by any thread, those of a worker by one thread at a time, and different
 * workers by different threads at once. A handle that is in use by another thread is told by WAVE_RPC_BUSY, never a
 * race.
 *
 * Memory. What the program passes is read during the call and not kept. What an event points to belongs to the worker,
 * and stays as it is until the next wave_rpc_worker_poll of that worker.
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

/* The version that the library was built with: compare with WAVE_RPC_VERSION where it is a shared one. */
uint32_t wave_rpc_version(void);

/* ---- What functions return ---- */

#define WAVE_RPC_OK 0             /* it was done; or: no, nothing */
#define WAVE_RPC_YES 1            /* yes; something came */
#define WAVE_RPC_BAD_HANDLE (-1)  /* the handle is null, or of another kind */
#define WAVE_RPC_BAD_ARGUMENT (-2) /* an argument has a value that the function does not take */
#define WAVE_RPC_NOT_OPEN (-3)    /* the call is over: ended, or gone with its agent */
#define WAVE_RPC_BLOCKED (-4)     /* the client has not read enough of earlier replies: poll, and try again later */
#define WAVE_RPC_TOO_LATE (-5)    /* metadata comes once, and before the first reply */
#define WAVE_RPC_TOO_LONG (-6)    /* more bytes than can be sent at once (72 MiB); the call is as it was */
#define WAVE_RPC_STOPPED (-7)     /* the server was stopped */
#define WAVE_RPC_BUSY (-8)        /* another thread uses the handle at this moment */
#define WAVE_RPC_SYSTEM (-9)      /* the system gave no socket, memory or thread */
#define WAVE_RPC_BAD_AGENT (-10)  /* the agent wrote nonsense, and is turned out */
#define WAVE_RPC_INTERNAL (-11)   /* a mistake of the library's */

/* What the last failure of the calling thread was, in English. Never null, empty where there was none. Valid until the
 * thread's next call of this library. */
const char *wave_rpc_error(void);

/* ---- A server ---- */

/* wave_rpc_method.streams: the client, the server sends any number of messages. Otherwise each sends one. */
#define WAVE_RPC_CLIENT_STREAMS 1
#define WAVE_RPC_SERVER_STREAMS 2

/* A method. Zero is a good value for all but the path. */
typedef struct wave_rpc_method {
    const char *path;          /* "/package.Service/Method" */
    uint32_t streams;          /* WAVE_RPC_CLIENT_STREAMS, WAVE_RPC_SERVER_STREAMS, both, or 0 */
    uint32_t slo_us;           /* the latency that its requests are to keep, in microseconds; 0: none */
    uint16_t slo_field;        /* the request's protobuf field (a varint) that holds that latency; 0: none */
    uint8_t request_class;     /* the class of its requests, which steers them, unless they ask for another */
    uint8_t request_class_max; /* the highest class that a request may ask for */
} wave_rpc_method;

/* wave_rpc_options.flags: a worker that waits gives its CPU to others meanwhile. For workers that share CPUs. */
#define WAVE_RPC_SHARE_CPU 1

/* How a server is made. Begin with WAVE_RPC_OPTIONS_INIT: what is zero is as by default. */
typedef struct wave_rpc_options {
    size_t size;                  /* of this structure */
    const char *socket;           /* the path where agents attach; has to be given */
    const wave_rpc_method *methods; /* what is served; a call names its method by the index here */
    size_t methods_count;
    const uint32_t *allowed_uids; /* users whose agents may attach, beside our own and root */
    size_t allowed_uids_count;
    const uint8_t *descriptors;   /* a serialized google.protobuf.FileDescriptorSet, for reflection */
    size_t descriptors_bytes;
    uint16_t workers;             /* 1 by default, 240 at most */
    uint16_t reserved;            /* zero */
    uint32_t calls;               /* open at once; 1024 by default */
    uint32_t ring_entries;        /* of 56 bytes each, in each worker's queues: a power of two; 1024 by default */
    uint32_t spin_us;             /* how long the worker and its agent look for work before they sleep;
                                     0: 5 for the worker, 50 for the agent. A worker sleeps at once
                                     where most calls come later than that */
    uint32_t flags;               /* WAVE_RPC_SHARE_CPU, or 0 */
} wave_rpc_options;

#define WAVE_RPC_OPTIONS_INIT { sizeof(wave_rpc_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A server, a worker: handles. */
typedef struct wave_rpc_server wave_rpc_server;
typedef struct wave_rpc_worker wave_rpc_worker;

/* Starts a server, and puts its handle into *server. It listens for an agent at once; a thread of the library looks
 * after that. An agent may attach, go, and be replaced by another one at any time.
 *
 * Fails with WAVE_RPC_BAD_ARGUMENT (options that cannot be) or WAVE_RPC_SYSTEM (the socket: another server listens
 * there, or no permission); *server is then left alone. */
int32_t wave_rpc_server_start(const wave_rpc_options *options, wave_rpc_server **server);

/* Puts worker number `index`, of 0 to workers - 1, into *worker. No call reaches a server unless every one of its
 * workers is polled. Fails with WAVE_RPC_BAD_ARGUMENT where there is no such worker. */
int32_t wave_rpc_server_worker(wave_rpc_server *server, uint16_t index, wave_rpc_worker **worker);

/* Whether an agent is attached: WAVE_RPC_YES or WAVE_RPC_OK. */
int32_t wave_rpc_server_has_agent(wave_rpc_server *server);

/* Stops a server: its socket is removed, its agent turned out, and clients whose calls are open get UNAVAILABLE from
 * the agent. Workers that wait are woken; every function of a worker then returns WAVE_RPC_STOPPED, and the first one
 * that does gives back what the worker had. To lose no reply, end all calls first. */
int32_t wave_rpc_server_stop(wave_rpc_server *server);

/* ---- What comes ---- */

/* Names a call of a worker. Each is used once, and never 0: a call that is over is known to be. */
typedef uint64_t wave_rpc_call;

/* wave_rpc_event.kind */
#define WAVE_RPC_BEGIN 1      /* a call begins, often with its first message. It has to be ended once: by
                                 wave_rpc_worker_finish, or by a reply with WAVE_RPC_END */
#define WAVE_RPC_MESSAGE 2    /* a further message of the client's */
#define WAVE_RPC_HALF_CLOSE 3 /* the client sends nothing more; only where no message said so by WAVE_RPC_END */
#define WAVE_RPC_CANCEL 4     /* nobody waits for the call any more: the client went, or its time is up. It has to be
                                 ended all the same; where its agent is gone, it has been (WAVE_RPC_NOT_OPEN) */

/* wave_rpc_event.flags, and those of replies (wave_rpc_worker_message) */
#define WAVE_RPC_HAS_MESSAGE 1 /* there is a message, be it an empty one */
#define WAVE_RPC_END 2         /* the client sends nothing more; of a reply: it is the last, and the call is OK */
#define WAVE_RPC_COMPRESSED 4  /* it came compressed; of a reply: compress it, if the client takes that */

/* wave_rpc_event.remaining_ns: for as long as it takes. */
#define WAVE_RPC_FOREVER UINT64_MAX

/* What came. The pointers are the worker's, and valid until its next wave_rpc_worker_poll. */
typedef struct wave_rpc_event {
    uint32_t kind;          /* WAVE_RPC_BEGIN, ... */
    uint32_t flags;         /* WAVE_RPC_HAS_MESSAGE, ... */
    wave_rpc_call call;     /* of which call */
    uint16_t method;        /* BEGIN: the index of its method */
    uint8_t request_class;  /* BEGIN: the class under which it was steered */
    uint8_t reserved;       /* zero */
    int32_t code;           /* CANCEL: why, as a code of gRPC's: CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE */
    uint64_t remaining_ns;  /* BEGIN: how long the client waits from now on, or WAVE_RPC_FOREVER */
    const uint8_t *message; /* with WAVE_RPC_HAS_MESSAGE: its bytes; otherwise null */
    size_t message_bytes;
    const uint8_t *metadata; /* BEGIN: for wave_rpc_event_metadata */
    size_t metadata_bytes;
} wave_rpc_event;

/* A pair of metadata. In what the program passes, `key` ends with a zero byte, and key_bytes is not looked at. In what
 * it gets, `key` has key_bytes bytes and no zero byte behind them. Keys have lower-case letters, digits, `_`, `-` and
 * `.`; a value is ASCII, 0x20 to 0x7e, or any bytes where its key ends with "-bin". */
typedef struct wave_rpc_pair {
    const char *key;
    size_t key_bytes;
    const void *value;
    size_t value_bytes;
} wave_rpc_pair;

/* The next thing that came: WAVE_RPC_YES and *event, or WAVE_RPC_OK where nothing has. Never waits. */
int32_t wave_rpc_worker_poll(wave_rpc_worker *worker, wave_rpc_event *event);

/* Makes replies travel, and waits for something to come, after a poll that found nothing: looks for at most spin_us
 * (a look for each call of this function), or not at all where calls rarely come that soon; then sleeps until the agent
 * rings, for 100 ms at most. It returns
 * without anything now and then: poll, and wait again. (A worker has no descriptor to wait on: what wakes it changes
 * with its agent. A program with a loop of its own gives workers threads of their own.) */
int32_t wave_rpc_worker_wait(wave_rpc_worker *worker);

/* Pair number `index` of the metadata of a WAVE_RPC_BEGIN: WAVE_RPC_YES and *pair, or WAVE_RPC_OK where there are not
 * as many. For an event of the worker's last poll. */
int32_t wave_rpc_event_metadata(const wave_rpc_event *event, size_t index, wave_rpc_pair *pair);

/* Whether nobody waits for the call any more: WAVE_RPC_YES or WAVE_RPC_OK. Cheap enough for every few microseconds of a
 * call that takes long; the event comes all the same. */
int32_t wave_rpc_worker_is_cancelled(wave_rpc_worker *worker, wave_rpc_call call);

/* How long the call's client waits from now on, into *remaining_ns: 0 where its time is up, or WAVE_RPC_FOREVER. */
int32_t wave_rpc_worker_remaining(wave_rpc_worker *worker, wave_rpc_call call, uint64_t *remaining_ns);

/* ---- What is answered: in any order of calls, and for several at a time ---- */

/* Sends metadata before the first reply, once: `pairs_count` of them. */
int32_t wave_rpc_worker_headers(wave_rpc_worker *worker, wave_rpc_call call, const wave_rpc_pair *pairs,
                                size_t pairs_count);

/* Sends a reply. With WAVE_RPC_END in `flags` it is the last, and the call has ended with OK; with WAVE_RPC_COMPRESSED
 * it is compressed. WAVE_RPC_BLOCKED: the client has not read enough of earlier replies; nothing was sent, poll and try
 * again. */
int32_t wave_rpc_worker_message(wave_rpc_worker *worker, wave_rpc_call call, const void *message, size_t message_bytes,
                                uint32_t flags);

/* Ends a call with a status: `code` is gRPC's (0 is OK), `message` a text that ends with a zero byte, or null,
 * `trailers` `trailers_count` pairs that go with it. */
int32_t wave_rpc_worker_finish(wave_rpc_worker *worker, wave_rpc_call call, int32_t code, const char *message,
                               const wave_rpc_pair *trailers, size_t trailers_count);

/* Makes all travel that was answered since the last time: after each reply for the least delay, after several for the
 * least work. wave_rpc_worker_wait does so as well. */
int32_t wave_rpc_worker_publish(wave_rpc_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
