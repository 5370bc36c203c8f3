/* An NVML library for tests: what unmodified pynvml needs, answered from a file.
 *
 * The state lies in the file that GPUSLICE_FAKE_NVML names, mapped shared, so that several
 * processes see one machine and a test can change it while they look. Its layout is mirrored by
 * __init__.py; fake_sizeof() lets a test compare both with each other and with pynvml's structs.
 *
 * Faults: a call can return an error, take its time or hang until the fault is taken away, for one
 * device or for all, for ever or for a number of calls.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25,
};

#define MAGIC 0x4e564d4cu
#define MAX_DEVICES 16
#define MAX_MIGS 8
#define MAX_PROCESSES 32
#define MAX_LINKS 18
#define MAX_FAULTS 32
#define NO_INSTANCE 0xffffffffu
#define MEMORY_V2 0x02000028u

/* -- NVML's own structs (nvml.h), only those that are used -- */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance;
} ProcessInfo;
typedef struct {
    unsigned pid; unsigned long long time_stamp; unsigned sm, mem, enc, dec;
} UtilizationSample;
typedef struct {
    char bus_id_legacy[16]; unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct {
    unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
} Attributes;

/* -- the state file -- */
typedef struct {
    uint32_t pid, type, instance, sm;          /* type 0 compute, 1 graphics; instance: of MIG */
    uint64_t used;                             /* bytes; all ones: the driver can't say */
    char name[64];
} Process;
typedef struct { uint32_t active, remote_type; int32_t remote; uint32_t pad; } Link;
typedef struct {
    uint32_t present, instance, slices, pad;
    char uuid[96], name[96];
    uint64_t total, reserved, used;
} Mig;
typedef struct {
    char uuid[96], name[96];
    uint64_t total, reserved, used;
    uint32_t gpu_utilization, memory_utilization, lost, mig_mode, bus;
    int32_t numa;
    uint32_t processes, samples;
    Link links[MAX_LINKS];
    Mig migs[MAX_MIGS];
    Process process[MAX_PROCESSES];
} Device;
typedef struct {
    char call[64];
    int32_t device, error;                     /* device -1: any */
    uint32_t slow_ms, hang, active, remaining; /* remaining 0: for ever */
} Fault;
typedef struct {
    uint32_t magic, devices;
    char driver[80];
    uint32_t topology[MAX_DEVICES][MAX_DEVICES];
    int32_t p2p_nvlink[MAX_DEVICES][MAX_DEVICES]; /* -1: not supported */
    Fault fault[MAX_FAULTS];
    uint64_t calls;
    Device device[MAX_DEVICES];
} State;

static State *state;
static unsigned users;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t fake_sizeof(const char *name) {
#define SIZE(type) if (!strcmp(name, #type)) return sizeof(type)
    SIZE(State); SIZE(Device); SIZE(Mig); SIZE(Process); SIZE(Link); SIZE(Fault);
    SIZE(Memory); SIZE(MemoryV2); SIZE(Utilization); SIZE(ProcessInfo); SIZE(UtilizationSample);
    SIZE(PciInfo); SIZE(Attributes);
    return 0;
}

static void sleep_ms(unsigned ms) {
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

static int matches(const char *pattern, const char *call) {
    size_t length = strlen(pattern);
    if (length && pattern[length - 1] == '*') return !strncmp(pattern, call, length - 1);
    return !strcmp(pattern, call);
}

static int faulted(State *now, const char *call, int device) {
    __atomic_add_fetch(&now->calls, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < MAX_FAULTS; i++) {
        volatile Fault *fault = &now->fault[i];
        if (!fault->active || !matches((const char *)fault->call, call)) continue;
        if (fault->device >= 0 && fault->device != device) continue;
        if (fault->slow_ms) sleep_ms(fault->slow_ms);
        while (fault->active && fault->hang) sleep_ms(5);
        int error = fault->error;
        if (fault->remaining && !--fault->remaining) fault->active = 0;
        if (error) return error;
    }
    return SUCCESS;
}

/* -- handles: 1 + device in the low byte, 1 + MIG place in the next -- */
static void *handle_of(int device, int mig) {
    return (void *)(uintptr_t)((device + 1) | (mig + 1) << 8);
}

static int enter(const char *call, void *handle, Device **device, Mig **mig) {
    State *now = state;
    if (!now) return UNINITIALIZED;
    int index = (int)((uintptr_t)handle & 0xff) - 1, place = (int)((uintptr_t)handle >> 8 & 0xff) - 1;
    if (index < 0 || index >= (int)now->devices || place >= MAX_MIGS) return INVALID_ARGUMENT;
    int error = faulted(now, call, index);
    if (error) return error;
    *device = &now->device[index];
    if ((*device)->lost) return GPU_IS_LOST;
    *mig = place < 0 ? NULL : &(*device)->migs[place];
    if (*mig && !(*mig)->present) return NOT_FOUND;
    return SUCCESS;
}

#define ENTER(handle)                                            \
    Device *device; Mig *mig;                                    \
    do {                                                         \
        int error = enter(__func__, handle, &device, &mig);      \
        if (error) return error;                                 \
    } while (0)
#define ENTER_SYSTEM()                                           \
    do {                                                         \
        if (!state) return UNINITIALIZED;                        \
        int error = faulted(state, __func__, -1);                \
        if (error) return error;                                 \
    } while (0)

static int put(char *out, unsigned length, const char *text) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

/* -- the library -- */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int result = SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        const char *path = getenv("GPUSLICE_FAKE_NVML");
        struct stat info;
        int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        void *map = MAP_FAILED;
        if (file >= 0 && !fstat(file, &info) && info.st_size >= (off_t)sizeof(State))
            map = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (map == MAP_FAILED || ((State *)map)->magic != MAGIC) {
            if (map != MAP_FAILED) munmap(map, sizeof(State));
            result = DRIVER_NOT_LOADED;
        } else {
            state = map;
        }
    }
    if (result == SUCCESS) {
        users++;
        result = faulted(state, "nvmlInit", -1);
        if (result != SUCCESS && --users == 0) state = NULL;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    int result = SUCCESS;
    pthread_mutex_lock(&lock);
    /* The map stays: another thread may be inside a call. It is a test's file of some kilobytes. */
    if (users == 0) result = UNINITIALIZED;
    else if (--users == 0) state = NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

const char *nvmlErrorString(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, "Error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    ENTER_SYSTEM();
    return put(out, length, state->driver);
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length) {
    ENTER_SYSTEM();
    for (unsigned i = 0; i < state->devices; i++)
        for (unsigned j = 0; j < state->device[i].processes; j++)
            if (state->device[i].process[j].pid == pid)
                return put(out, length, state->device[i].process[j].name);
    return NOT_FOUND;
}

/* In a container the runtime leaves the devices that NVIDIA_VISIBLE_DEVICES names by UUID, and NVML
   shows no others. GPUSLICE_FAKE_RUNTIME says that this process is in such a container. */
static int injected(unsigned i) {
    const char *chosen = getenv("NVIDIA_VISIBLE_DEVICES");
    return !getenv("GPUSLICE_FAKE_RUNTIME") || (chosen && strstr(chosen, state->device[i].uuid));
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_SYSTEM();
    *count = 0;
    for (unsigned i = 0; i < state->devices; i++) *count += injected(i);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (!state) return UNINITIALIZED;
    unsigned place = 0, wanted = index;
    for (index = 0; index < state->devices; index++)
        if (injected(index) && place++ == wanted) break;
    if (index >= state->devices) return INVALID_ARGUMENT;
    int error = faulted(state, __func__, (int)index);
    if (error) return error;
    if (state->device[index].lost) return GPU_IS_LOST;
    *handle = handle_of((int)index, -1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (!state) return UNINITIALIZED;
    for (unsigned i = 0; i < state->devices; i++) {
        Device *device = &state->device[i];
        int place = strcmp(device->uuid, uuid) ? -2 : -1;
        for (int j = 0; j < MAX_MIGS && place == -2; j++)
            if (device->migs[j].present && !strcmp(device->migs[j].uuid, uuid)) place = j;
        if (place == -2 || !injected(i)) continue;
        int error = faulted(state, __func__, (int)i);
        if (error) return error;
        if (device->lost) return GPU_IS_LOST;
        *handle = handle_of((int)i, place);
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned length) {
    ENTER(handle);
    return put(out, length, mig ? mig->uuid : device->uuid);
}

int nvmlDeviceGetName(void *handle, char *out, unsigned length) {
    ENTER(handle);
    return put(out, length, mig ? mig->name : device->name);
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    ENTER(handle);
    *index = (unsigned)(mig ? mig - device->migs : device - state->device);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    ENTER(handle);
    uint64_t total = mig ? mig->total : device->total;
    uint64_t reserved = mig ? mig->reserved : device->reserved, used = mig ? mig->used : device->used;
    memory->total = total;
    memory->used = used + reserved; /* version 1 does not tell them apart */
    memory->free = total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
    ENTER(handle);
    if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    memory->total = mig ? mig->total : device->total;
    memory->reserved = mig ? mig->reserved : device->reserved;
    memory->used = mig ? mig->used : device->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    ENTER(handle);
    if (mig || device->mig_mode == 1) return NOT_SUPPORTED;
    rates->gpu = device->gpu_utilization;
    rates->memory = device->memory_utilization;
    return SUCCESS;
}

static int processes(Device *device, Mig *mig, unsigned type, unsigned *count, ProcessInfo *out) {
    unsigned found = 0;
    for (unsigned i = 0; i < device->processes && i < MAX_PROCESSES; i++) {
        Process *process = &device->process[i];
        if (process->type != type || (mig && process->instance != mig->instance)) continue;
        if (out && found < *count)
            out[found] = (ProcessInfo){process->pid, process->used, process->instance,
                                       process->instance == NO_INSTANCE ? NO_INSTANCE : 0};
        found++;
    }
    int fits = found <= *count && (out || found == 0);
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    ENTER(handle);
    return processes(device, mig, 0, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *out) {
    ENTER(handle);
    return processes(device, mig, 1, count, out);
}

int nvmlDeviceGetProcessUtilization(void *handle, UtilizationSample *out, unsigned *count,
                                    unsigned long long since) {
    ENTER(handle);
    if (mig || device->mig_mode == 1 || !device->samples) return NOT_SUPPORTED;
    unsigned found = 0, room = *count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long stamp = (unsigned long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    if (stamp <= since) return NOT_FOUND;
    for (unsigned i = 0; i < device->processes && i < MAX_PROCESSES; i++) {
        if (!device->process[i].sm) continue; /* an idle process has no samples */
        if (out && found < room)
            out[found] = (UtilizationSample){device->process[i].pid, stamp,
                                             device->process[i].sm, 0, 0, 0};
        found++;
    }
    *count = found;
    if (!found) return NOT_FOUND;
    return out && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

static void pci(Device *device, PciInfo *info) {
    memset(info, 0, sizeof *info);
    info->bus = device->bus;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", device->bus & 0xff);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", device->bus & 0xff);
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *info) {
    ENTER(handle);
    pci(device, info);
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, unsigned long *nodes, unsigned scope) {
    ENTER(handle);
    (void)scope;
    if (device->numa < 0) return NOT_SUPPORTED;
    memset(nodes, 0, size * sizeof *nodes);
    unsigned word = (unsigned)device->numa / 64;
    if (word >= size) return INVALID_ARGUMENT;
    nodes[word] = 1ul << device->numa % 64;
    return SUCCESS;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    ENTER(one);
    Device *first = device;
    int error = enter(__func__, other, &device, &mig);
    if (error) return error;
    *level = state->topology[first - state->device][device - state->device];
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned index, unsigned *status) {
    ENTER(one);
    Device *first = device;
    int error = enter(__func__, other, &device, &mig);
    if (error) return error;
    int known = state->p2p_nvlink[first - state->device][device - state->device];
    if (index != 2 || known < 0) return NOT_SUPPORTED;
    *status = (unsigned)known;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    ENTER(handle);
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = device->links[link].active;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type) {
    ENTER(handle);
    if (link >= MAX_LINKS || !device->links[link].active) return INVALID_ARGUMENT;
    *type = device->links[link].remote_type;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, PciInfo *info) {
    ENTER(handle);
    if (link >= MAX_LINKS || !device->links[link].active) return INVALID_ARGUMENT;
    int remote = device->links[link].remote;
    if (remote < 0 || remote >= (int)state->devices) return NOT_SUPPORTED;
    pci(&state->device[remote], info);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER(handle);
    if (device->mig_mode > 1) return NOT_SUPPORTED; /* 2: a board that knows no MIG */
    *current = *pending = device->mig_mode;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    ENTER(handle);
    *count = device->mig_mode > 1 ? 0 : MAX_MIGS;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    ENTER(handle);
    if (mig || index >= MAX_MIGS) return INVALID_ARGUMENT;
    if (!device->migs[index].present) return NOT_FOUND;
    *out = handle_of((int)(device - state->device), (int)index);
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *answer) {
    ENTER(handle);
    *answer = mig != NULL;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **out) {
    ENTER(handle);
    if (!mig) return INVALID_ARGUMENT;
    *out = handle_of((int)(device - state->device), -1);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) {
    ENTER(handle);
    if (!mig) return INVALID_ARGUMENT;
    *id = mig->instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) {
    ENTER(handle);
    if (!mig) return INVALID_ARGUMENT;
    *id = 0; /* one compute instance in each */
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    ENTER(handle);
    if (mig) return INVALID_ARGUMENT;
    *minor = (unsigned)(device - state->device);
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(void *handle, Attributes *attributes) {
    ENTER(handle);
    if (!mig) return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = attributes->compute_slices = mig->slices;
    attributes->memory_mb = mig->total >> 20;
    return SUCCESS;
}
