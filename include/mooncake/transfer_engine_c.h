/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKE_TRANSFER_ENGINE_C_H
#define MOONCAKE_TRANSFER_ENGINE_C_H

/*
 * The C face of the transfer engine (libtransfer_engine.so), for C99 and everything that can call C.
 *
 * An engine lends memory of this process to its peers and moves bytes between it and theirs. The usual life:
 *
 *     transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "10.0.0.1", "", 0, 1);
 *     registerLocalMemory(engine, buffer, size, "*", 1);
 *     segment_id_t peer = openSegment(engine, "10.0.0.2:15123");         what getLocalIpAndPort() says over there
 *     batch_id_t batch = allocateBatchID(engine, 1);
 *     submitTransfer(engine, batch, &request, 1);
 *     do getTransferStatus(engine, batch, 0, &status); while (status.status is WAITING or PENDING);
 *     freeBatchID(engine, batch);
 *     destroyTransferEngine(engine);
 *
 * Threads: every function may be called from any thread at any time. Text and arrays passed in are copied before the call
 * returns; the memory that a request names must stay valid until its task is finished.
 *
 * Wrong arguments never crash: an engine, batch or segment that does not exist (any more) and NULL where an object is needed
 * give an error. Two families of results:
 *   - calls about the engine, its memory and its segments: 0, or a negative code;
 *   - calls about batches (submit, status, free): 0, or a positive code.
 * The numbers: 1 invalid argument, 2 batch full, 3 address not registered, 4 batch busy, 7 addresses overlap, 8 no transport,
 * 102 connection trouble, 104 refused by the peer, 200 peer or directory entry not found, 301 out of time, 999 not
 * implemented (as an engine code -303).
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MOONCAKE_C_API __attribute__((visibility("default")))
#else
#define MOONCAKE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): this is C */
typedef int32_t segment_id_t;     /* negative: an error */
typedef int32_t segment_handle_t; /* another name for it */
typedef uint64_t batch_id_t;
typedef void* transfer_engine_t; /* opaque: not an address */
typedef void* transport_t;       /* opaque, lives as long as the process */

#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)  /* from the peer's memory to ours */
#define OPCODE_WRITE (1) /* from ours to the peer's */

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4) /* every byte is at its destination */
#define STATUS_TIMEOUT (5)   /* like the other failures: no byte moves any more */
#define STATUS_FAILED (6)

/* One contiguous piece to move: one task of a batch. */
struct transfer_request {
    int opcode;
    void* source; /* our side of it, whatever the direction */
    segment_id_t target_id;
    uint64_t target_offset; /* an address in the peer's memory */
    uint64_t length;        /* 0 moves nothing and completes */
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

/* A short message to a peer's program, handed out there by getNotifsFromEngine(). */
struct notify_msg {
    char* name;
    char* msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
    void* addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* Kept for programs that name the type; no function uses it. */
struct segment_desc {
    int type;
    union {
        struct {
            void* addr;
            uint64_t size;
            const char* location;
        } rdma;
        struct {
            const char* file_path;
            uint64_t size;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;
/* NOLINTEND(modernize-use-using) */

/* ---- engine ---- */

/*
 * Starts an engine; NULL on failure (the log says why). `metadata_conn_string`: "P2PHANDSHAKE" or the address of a directory
 * ("http://...", "etcd://...", "redis://..."). `local_server_name`: host or host:port; peer to peer only the host counts and
 * the port is chosen. `ip_or_host_name` and `rpc_port` are accepted and not needed. All transports are always ready, so
 * `auto_discover` changes nothing. Reads the MC_* environment variables.
 */
MOONCAKE_C_API transfer_engine_t createTransferEngine(const char* metadata_conn_string, const char* local_server_name,
                                                      const char* ip_or_host_name, uint64_t rpc_port, int auto_discover);
/* Stops running transfers and forgets the registered memory, then waits for calls in other threads to return. */
MOONCAKE_C_API void destroyTransferEngine(transfer_engine_t engine);
/* The topology is known from the start; 0 for a living engine. */
MOONCAKE_C_API int discoverTopology(transfer_engine_t engine);
/* Writes the name under which peers open us when peer to peer ("10.0.0.1:15123", "[::1]:15123"), cut to fit with its NUL. */
MOONCAKE_C_API int getLocalIpAndPort(transfer_engine_t engine, char* buf_out, size_t buf_len);

/*
 * A transport is chosen per peer, so nothing needs installing: gives an object for every protocol that this engine has or
 * that tcp stands in for, NULL for others. `args` is ignored.
 */
MOONCAKE_C_API transport_t installTransport(transfer_engine_t engine, const char* proto, void** args);
MOONCAKE_C_API int uninstallTransport(transfer_engine_t engine, const char* proto);

/*
 * From now on SIGTERM, SIGINT and exit() close this engine, so that peers and directories see it leave; the signals then end
 * the process with the status 128 + signal. Replaces the program's handlers of the two signals.
 */
MOONCAKE_C_API void enableGracefulShutdown(transfer_engine_t engine);

/* ---- segments: the memory another engine lends ---- */

/*
 * Our own name gives LOCAL_SEGMENT. Leading '/' do not count. Negative on failure. To be called again when a peer has restarted and its new
 * addresses are known: then no thread is refused for using the former ones.
 */
MOONCAKE_C_API segment_id_t openSegment(transfer_engine_t engine, const char* segment_name);
/* Forgets what is known of the segment first. */
MOONCAKE_C_API segment_id_t openSegmentNoCache(transfer_engine_t engine, const char* segment_name);
/* Segments need no closing. */
MOONCAKE_C_API int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
/* Forgets what is known of the segment. */
MOONCAKE_C_API int removeLocalSegment(transfer_engine_t engine, const char* segment_name);
/* Fetches anew what is known of all segments; a peer that is gone does not count as an error. */
MOONCAKE_C_API int syncSegmentCache(transfer_engine_t engine);
/* Connects over the fabric ahead of the first transfer; again: 0 at once. Without a fabric there is nothing to warm up: 0. */
MOONCAKE_C_API int warmupEfaSegment(transfer_engine_t engine, const char* segment_name);

/* ---- memory ---- */

/* `location`: "*" (find out), "cpu:0", ... Without `remote_accessible` peers cannot reach it, but our own transfers can. */
MOONCAKE_C_API int registerLocalMemory(transfer_engine_t engine, void* addr, size_t length, const char* location, int remote_accessible);
/* Once it returned 0, no peer touches the memory any more. */
MOONCAKE_C_API int unregisterLocalMemory(transfer_engine_t engine, void* addr);
/* All or none. */
MOONCAKE_C_API int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t* buffer_list, size_t buffer_len, const char* location);
/* Goes on after an error; returns the first. */
MOONCAKE_C_API int unregisterLocalMemoryBatch(transfer_engine_t engine, void** addr_list, size_t addr_len);

/* ---- batches ---- */

/* `batch_size` is the number of tasks the batch can ever hold. INVALID_BATCH on failure. */
MOONCAKE_C_API batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/*
 * May be called several times on one batch; task numbers go on. Takes all requests or none.
 *
 * A peer that has restarted has new addresses, so each thread that uses it is refused once: by a task that fails, if it asks for its status, or
 * here. A thread that only submits, while another one asks, is refused here. Whoever opens the segment again is not.
 */
MOONCAKE_C_API int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count);
/* The target of the first request gets the message once all tasks of the batch are complete; polling is not needed for it. */
MOONCAKE_C_API int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request* entries, size_t count,
                                            notify_msg_t notify_msg);
/* `task_id` counts the requests of the batch in the order of submission, from 0. */
MOONCAKE_C_API int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status* status);
/* 4 while a task runs. */
MOONCAKE_C_API int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* ---- messages ---- */

/* All messages received since the last call, to be given to freeNotifsMsgBuf(); NULL and *size = 0 if there are none. */
MOONCAKE_C_API notify_msg_t* getNotifsFromEngine(transfer_engine_t engine, int* size);
MOONCAKE_C_API int freeNotifsMsgBuf(notify_msg_t* msg, int size);
/* Sends a message at once; returns when the peer has it. */
MOONCAKE_C_API int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* ---- insight ---- */

/* Of the NICs driven by us; none for transports through the kernel (tcp), which chooses the NIC by itself.
   *count: room in `stats` before, entries written after. */
MOONCAKE_C_API int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t* stats, size_t* count);
/* Our NICs and which memory is near them, as text or JSON, cut to fit with its NUL. -1 for NULL or no room. */
MOONCAKE_C_API int showLinks(transfer_engine_t engine, char* buf, size_t len, int json);

#ifdef __cplusplus
}
#endif

#endif
