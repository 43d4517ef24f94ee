/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKE_STORE_C_H
#define MOONCAKE_STORE_C_H

/*
 * The C face of the store (libmooncake_store.so), for C99 and everything that can call C.
 *
 * A store is one member of a pool of memory that many processes lend, addressed by key. The usual life:
 *
 *     mooncake_store_t store = mooncake_store_create();
 *     mooncake_store_setup(store, "10.0.0.1", "P2PHANDSHAKE", 1 << 30, 16 << 20, "tcp", "", "10.0.0.9:50051");
 *     mooncake_store_put(store, "key", value, size, NULL);
 *     mooncake_store_get_into(store, "key", buffer, sizeof buffer);
 *     mooncake_store_destroy(store);
 *
 * Threads: every function may be called from any thread at any time, mooncake_store_destroy() included: calls in flight then end
 * with -1010. Texts are NUL-terminated UTF-8. Memory that is passed must stay valid until the call returns.
 *
 * Results are 0 or more for success, negative for failure: -200 no space, -600 wrong arguments, -704 no such key, -706 leased,
 * -800 the data could not be moved, -900 the master does not answer, -1010 closed, -1 no memory or threads are to be had... A store that does not exist, or was not set
 * up, and NULL where something is needed give -600. Batches give one result per key through `results`, and return 0, or -600 when
 * the call itself makes no sense.
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MOONCAKE_STORE_API __attribute__((visibility("default")))
#else
#define MOONCAKE_STORE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(modernize-use-using): this is C */
typedef void* mooncake_store_t; /* opaque: not an address */

/* How values are to be stored; NULL instead of one: one replica, not pinned, anywhere. */
typedef struct mooncake_replicate_config {
    size_t replica_num;
    int with_soft_pin; /* evicted only when nothing else can be */
    int with_hard_pin; /* never evicted */
    const char** preferred_segments;
    size_t preferred_segments_count;
} mooncake_replicate_config_t;

/* ---- life */

/* NULL: out of memory. */
MOONCAKE_STORE_API mooncake_store_t mooncake_store_create(void);
/* Leaves the pool; the handle is void afterwards. */
MOONCAKE_STORE_API void mooncake_store_destroy(mooncake_store_t store);
/* Joins the pool. A host without a port gets a free one. Sizes: memory lent to the pool, staging memory. device_name: comma-separated
   network devices, "" for all. */
MOONCAKE_STORE_API int mooncake_store_setup(mooncake_store_t store, const char* local_hostname, const char* metadata_server,
                                            uint64_t global_segment_size, uint64_t local_buffer_size, const char* protocol,
                                            const char* device_name, const char* master_server_addr);
/* Older form, for a master and a directory with fixed addresses on this host. */
MOONCAKE_STORE_API int mooncake_store_init_all(mooncake_store_t store, const char* protocol, const char* device_name,
                                               uint64_t mount_segment_size);
/* 0: well; 1: not set up; 2: the master does not answer. */
MOONCAKE_STORE_API int mooncake_store_health_check(mooncake_store_t store);
/* host:port, the name of our segments; -10 if it does not fit. */
MOONCAKE_STORE_API int mooncake_store_get_hostname(mooncake_store_t store, char* buffer, size_t size);

/* ---- values */

/* A key that has a value already keeps it, and that is a success. */
MOONCAKE_STORE_API int mooncake_store_put(mooncake_store_t store, const char* key, const void* value, size_t size,
                                          const mooncake_replicate_config_t* config);
MOONCAKE_STORE_API int mooncake_store_put_from(mooncake_store_t store, const char* key, void* buffer, size_t size,
                                               const mooncake_replicate_config_t* config);
/* ..._n: the same for keys of any bytes, NUL included. */
MOONCAKE_STORE_API int mooncake_store_put_from_n(mooncake_store_t store, const void* key, size_t key_size, void* buffer, size_t size,
                                                 const mooncake_replicate_config_t* config);
MOONCAKE_STORE_API int mooncake_store_batch_put_from(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes,
                                                     size_t count, const mooncake_replicate_config_t* config, int* results);
/* The length of the value; -600 if it is longer than `size`. */
MOONCAKE_STORE_API int64_t mooncake_store_get_into(mooncake_store_t store, const char* key, void* buffer, size_t size);
MOONCAKE_STORE_API int64_t mooncake_store_get_into_n(mooncake_store_t store, const void* key, size_t key_size, void* buffer, size_t size);
MOONCAKE_STORE_API int mooncake_store_batch_get_into(mooncake_store_t store, const char** keys, void** buffers, const size_t* sizes,
                                                     size_t count, int64_t* results);
/* 1, 0, or a negative code. */
MOONCAKE_STORE_API int mooncake_store_is_exist(mooncake_store_t store, const char* key);
MOONCAKE_STORE_API int mooncake_store_is_exist_n(mooncake_store_t store, const void* key, size_t key_size);
MOONCAKE_STORE_API int mooncake_store_batch_is_exist(mooncake_store_t store, const char** keys, size_t count, int* results);
MOONCAKE_STORE_API int64_t mooncake_store_get_size(mooncake_store_t store, const char* key);
/* `force` removes also what somebody may be reading. */
MOONCAKE_STORE_API int mooncake_store_remove(mooncake_store_t store, const char* key, int force);
/* How many were removed. */
MOONCAKE_STORE_API int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char* pattern, int force);
MOONCAKE_STORE_API int64_t mooncake_store_remove_all(mooncake_store_t store, int force);

/* ---- memory */

/* Makes memory known to the network, which then reads and writes it by itself. */
MOONCAKE_STORE_API int mooncake_store_register_buffer(mooncake_store_t store, void* buffer, size_t size);
MOONCAKE_STORE_API int mooncake_store_unregister_buffer(mooncake_store_t store, void* buffer);

/* NOLINTEND(modernize-use-using) */

#ifdef __cplusplus
}
#endif

#endif
