// SPDX-License-Identifier: Apache-2.0
// cuda_probe [path of libcuda.so.1 [notimes]]
#include <cstdio>

#include "base/format.h"
#include "probe.h"

int main(int count, char** arguments) {
    const std::string library = count > 1 ? arguments[1] : "libcuda.so.1";
    probe::Importer importer(library);
    probe::Application app;
    if (!app.start(library)) return 2;
    probe::Table table;
    {
        mooncake::cuda::CudaDevice device({});
        size_t free_before = 0, free_after = 0, total = 0;
        (void)app.memory_info(&free_before, &total);
        probe::probe_machine(app, table);
        probe::probe_memory(app, device, table);
        probe::probe_copies(app, device, table);
        probe::probe_driver(app, device, importer, table);
        if (count < 3) probe::probe_times(app, device, table);
        (void)app.memory_info(&free_after, &total);
        table.title("end");
        table.tell("GPU memory taken meanwhile",
                   mooncake::format_text("{} MiB", (static_cast<int64_t>(free_before) - static_cast<int64_t>(free_after)) >> 20));
    }
    std::printf("%d wrong\n", table.wrong());
    return table.wrong() == 0 ? 0 : 1;
}
