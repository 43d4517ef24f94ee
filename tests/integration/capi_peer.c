/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The other process of the tests of the C interface, in C. Lends a buffer and does what it is told on stdin, one line each,
 * answering with one line each:
 *
 *     (start)                                       -> NAME ADDRESS BYTES
 *     fill OFFSET LENGTH VALUE                      -> ok
 *     check OFFSET LENGTH VALUE                     -> yes | no
 *     notify SEGMENT NAME TEXT                      -> code
 *     notified                                      -> NAME TEXT | none            (waits a while for one)
 *     write|read SEGMENT OFFSET REMOTE LENGTH NOTE  -> status code                 (moves and waits; NOTE "-" sends none)
 *
 * With the argument "graceful" it asks to be closed on signals. Ends when stdin does.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mooncake/transfer_engine_c.h"

enum { kBytes = 64 << 20, kPolls = 20000 };

static transfer_engine_t engine;
static char* buffer;

static void pause_shortly(void) {
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

static int inside(uint64_t offset, uint64_t length) { return offset <= kBytes && length <= kBytes - offset; }

/* That the writing is over is known from another process, which a sanitizer of this one cannot see. */
__attribute__((no_sanitize("thread"), noinline)) static void check(uint64_t offset, uint64_t length, int value) {
    uint64_t i;
    for (i = 0; i < length; ++i) {
        if (buffer[offset + i] != (char)value) {
            puts("no");
            return;
        }
    }
    puts("yes");
}

static void wait_for_message(void) {
    int tries;
    for (tries = 0; tries < kPolls; ++tries) {
        int size = -1;
        notify_msg_t* messages = getNotifsFromEngine(engine, &size);
        if (size > 0) {
            printf("%s %s\n", messages[0].name, messages[0].msg);
            freeNotifsMsgBuf(messages, size);
            return;
        }
        pause_shortly();
    }
    puts("none");
}

static void notify(const char* segment, char* name, char* text) {
    notify_msg_t message;
    const segment_id_t target = openSegment(engine, segment);
    message.name = name;
    message.msg = text;
    printf("%d\n", target < 0 ? target : genNotifyInEngine(engine, (uint64_t)target, message));
}

/* One post of one request, as a plug-in does it: the request is gone before the transfer is over. */
static int post(batch_id_t batch, int opcode, segment_id_t target, uint64_t offset, uint64_t remote, uint64_t length, char* note) {
    int result;
    transfer_request_t* request = calloc(1, sizeof(*request));
    request->opcode = opcode;
    request->source = buffer + offset;
    request->target_id = target;
    request->target_offset = remote;
    request->length = length;
    if (strcmp(note, "-") == 0) {
        result = submitTransfer(engine, batch, request, 1);
    } else {
        notify_msg_t message;
        message.name = "peer";
        message.msg = note;
        result = submitTransferWithNotify(engine, batch, request, 1, message);
    }
    memset(request, 0xff, sizeof(*request));
    free(request);
    return result;
}

static void transfer(int opcode, const char* segment, uint64_t offset, uint64_t remote, uint64_t length, char* note) {
    transfer_status_t status = {STATUS_WAITING, 0};
    const segment_id_t target = openSegment(engine, segment);
    const batch_id_t batch = allocateBatchID(engine, 16);
    int result = target < 0 ? target : post(batch, opcode, target, offset, remote, length, note);
    while (result == 0 && (status.status == STATUS_WAITING || status.status == STATUS_PENDING))
        result = getTransferStatus(engine, batch, 0, &status);
    if (result == 0) result = freeBatchID(engine, batch);
    printf("%d %d\n", status.status, result);
}

static void obey(const char* line) {
    char word[16] = "", segment[128] = "", name[64] = "", text[256] = "";
    uint64_t offset = 0, length = 0, remote = 0;
    int value = 0;
    if (sscanf(line, "fill %" SCNu64 " %" SCNu64 " %d", &offset, &length, &value) == 3 && inside(offset, length)) {
        memset(buffer + offset, value, length);
        puts("ok");
    } else if (sscanf(line, "check %" SCNu64 " %" SCNu64 " %d", &offset, &length, &value) == 3 && inside(offset, length)) {
        check(offset, length, value);
    } else if (sscanf(line, "notify %127s %63s %255s", segment, name, text) == 3) {
        notify(segment, name, text);
    } else if (strcmp(line, "notified\n") == 0) {
        wait_for_message();
    } else if (sscanf(line, "%15s %127s %" SCNu64 " %" SCNu64 " %" SCNu64 " %255s", word, segment, &offset, &remote, &length, text) == 6 &&
               inside(offset, length)) {
        transfer(strcmp(word, "write") == 0 ? OPCODE_WRITE : OPCODE_READ, segment, offset, remote, length, text);
    } else {
        puts("what?");
    }
}

/* Lines come one at a time, each after the answer to the last. In poll() signals arrive at once also under a sanitizer. */
static char* next_line(char* line, int size) {
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, -1) < 0) {}
    return fgets(line, size, stdin);
}

int main(int argc, char** argv) {
    char name[64], line[1024];
    engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    buffer = calloc(1, kBytes);
    if (engine == NULL || buffer == NULL) return 1;
    if (argc > 1 && strcmp(argv[1], "graceful") == 0) enableGracefulShutdown(engine);
    if (registerLocalMemory(engine, buffer, kBytes, "*", 1) != 0) return 1;
    if (getLocalIpAndPort(engine, name, sizeof(name)) != 0) return 1;
    printf("%s %" PRIuPTR " %d\n", name, (uintptr_t)buffer, kBytes);
    fflush(stdout);
    while (next_line(line, (int)sizeof(line)) != NULL) {
        obey(line);
        fflush(stdout);
    }
    if (unregisterLocalMemory(engine, buffer) != 0) return 1;
    destroyTransferEngine(engine);
    free(buffer);
    return 0;
}
