/* A disk that fails by chance or is recorded, and a clock that is wrong, below any program: LD_PRELOAD puts these
 * functions before libc's.
 *
 * NEXTSLOT_DISK_ROOT     only files below this directory are concerned
 * NEXTSLOT_DISK_CONTROL  a file with `struct control`: how often each fault happens and has happened, and the clock
 * NEXTSLOT_DISK_RECORD   a file to which each change of a file is appended, in order; tests/crash/power_cut.py reads it
 *
 * tests/crash/faulty_machine.py compiles this file and sets the variables.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum fault { READ_FAILS, WRITE_FAILS, DISK_FULL, SHORT_WRITE, SYNC_FAILS, OPEN_FAILS, FAULTS };

struct control {
    uint32_t per_million[FAULTS];
    uint32_t unused[8 - FAULTS];
    uint64_t happened[FAULTS];
    int64_t seconds_ahead; /* of the wall clock; monotonic clocks are right */
};

struct head {
    char kind; /* write, sync, truncate, create, rename, unlink, mkdir, link */
    char padding[3];
    uint32_t path, other; /* how many bytes follow: the path, the second path, the data */
    uint32_t data;
    uint64_t inode, offset;
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;
static int record = -1;
static pthread_mutex_t in_order = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t chance;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NEXTSLOT_DISK_ROOT"), *file = getenv("NEXTSLOT_DISK_CONTROL");
    if (path == NULL || realpath(path, root) == NULL) return;
    root_length = strlen(root);
    if (file != NULL) {
        int fd = REAL(open)(file, O_RDWR | O_CLOEXEC);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) REAL(close)(fd);
        if (at != MAP_FAILED) control = at;
    }
    if ((file = getenv("NEXTSLOT_DISK_RECORD")) != NULL)
        record = REAL(open)(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int is_below(const char *path) {
    return root_length > 0 && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

/* The path of an open file; 0 if it is none of ours. Programs may close descriptors of others, so nothing is kept. */
static int path_of(int fd, char *path) {
    char link[40];
    if (root_length == 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int full_path(int directory, const char *path, char *full) {
    char joined[PATH_MAX], parent[PATH_MAX];
    if (root_length == 0) return 0;
    if (path[0] == '/') {
        snprintf(joined, sizeof joined, "%s", path);
    } else {
        if (directory == AT_FDCWD) {
            if (getcwd(parent, sizeof parent) == NULL) return 0;
        } else {
            char link[40];
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            ssize_t length = readlink(link, parent, sizeof parent - 1);
            if (length <= 0) return 0;
            parent[length] = 0;
        }
        if ((size_t)snprintf(joined, sizeof joined, "%s/%s", parent, path) >= sizeof joined) return 0;
    }
    char *name = strrchr(joined, '/');
    *name++ = 0;
    if (realpath(joined[0] ? joined : "/", parent) == NULL) return 0;
    if ((size_t)snprintf(full, PATH_MAX, "%s/%s", parent, name) >= PATH_MAX) return 0;
    return is_below(full);
}

static int happens(enum fault fault) {
    if (control == NULL || control->per_million[fault] == 0) return 0;
    if (chance == 0) {
        struct timespec now;
        REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
        chance = ((uint64_t)getpid() << 32) ^ (uint64_t)now.tv_nsec ^ (uint64_t)(uintptr_t)&chance ^ 0x9e3779b97f4a7c15u;
    }
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    if (chance % 1000000 >= control->per_million[fault]) return 0;
    __atomic_add_fetch(&control->happened[fault], 1, __ATOMIC_RELAXED);
    return 1;
}

static int fails(enum fault fault, int number) {
    if (!happens(fault)) return 0;
    errno = number;
    return 1;
}

static void note(char kind, const char *path, const char *other, uint64_t inode, uint64_t offset, const void *data,
                 size_t length) {
    struct head head = {.kind = kind, .path = strlen(path), .other = strlen(other), .data = length, .inode = inode,
                        .offset = offset};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path}, {(void *)other, head.other},
                            {(void *)data, length}};
    size_t all = sizeof head + head.path + head.other + length;
    int before = errno;
    if (REAL(writev)(record, parts, 4) != (ssize_t)all) abort();
    errno = before;
}

static void note_file(char kind, int fd, const char *path, uint64_t offset, const void *data, size_t length) {
    struct stat found;
    if (fstat(fd, &found) == 0) note(kind, path, "", found.st_ino, offset, data, length);
}

/* Each change and its record are one step, also with several threads. */
#define RECORDED(type, call, notes)                    \
    do {                                               \
        if (record < 0) return call;                   \
        pthread_mutex_lock(&in_order);                 \
        type done = call;                              \
        if (done >= 0) notes;                          \
        pthread_mutex_unlock(&in_order);               \
        return done;                                   \
    } while (0)

static ssize_t before_write(size_t *length) {
    if (fails(WRITE_FAILS, EIO) || fails(DISK_FULL, ENOSPC)) return -1;
    if (*length > 1 && happens(SHORT_WRITE)) *length /= 2;
    return 0;
}

static ssize_t one_write(int fd, const void *data, size_t length, const char *path) {
    RECORDED(ssize_t, REAL(write)(fd, data, length),
             note_file('w', fd, path, (uint64_t)(lseek(fd, 0, SEEK_CUR) - done), data, done));
}

ssize_t write(int fd, const void *data, size_t length) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return REAL(write)(fd, data, length);
    if (before_write(&length) < 0) return -1;
    return one_write(fd, data, length, path);
}

static ssize_t write_at(int fd, const void *data, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return REAL(pwrite)(fd, data, length, offset);
    if (before_write(&length) < 0) return -1;
    RECORDED(ssize_t, REAL(pwrite)(fd, data, length, offset), note_file('w', fd, path, offset, data, done));
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return write_at(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return write_at(fd, data, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return REAL(writev)(fd, parts, count);
    ssize_t all = 0;
    for (int number = 0; number < count; number++) {
        size_t length = parts[number].iov_len;
        if (before_write(&length) < 0) return all ? all : -1;
        ssize_t done = one_write(fd, parts[number].iov_base, length, path);
        if (done < 0) return all ? all : -1;
        all += done;
        if ((size_t)done < parts[number].iov_len) break;
    }
    return all;
}

/* Copies inside of the kernel cannot be seen: the program copies by itself instead. */
#define COPIED(out, call)                                            \
    do {                                                             \
        char path[PATH_MAX];                                         \
        if (path_of(out, path)) { errno = EINVAL; return -1; }       \
        return call;                                                 \
    } while (0)

ssize_t sendfile(int out, int in, off_t *offset, size_t count) { COPIED(out, REAL(sendfile)(out, in, offset, count)); }
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count) {
    COPIED(out, REAL(sendfile64)(out, in, offset, count));
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t count, unsigned flags) {
    COPIED(out, REAL(copy_file_range)(in, from, out, to, count, flags));
}

ssize_t read(int fd, void *data, size_t length) {
    char path[PATH_MAX];
    if (control != NULL && path_of(fd, path) && fails(READ_FAILS, EIO)) return -1;
    return REAL(read)(fd, data, length);
}

static ssize_t read_at(int fd, void *data, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (control != NULL && path_of(fd, path) && fails(READ_FAILS, EIO)) return -1;
    return REAL(pread)(fd, data, length, offset);
}

ssize_t pread(int fd, void *data, size_t length, off_t offset) { return read_at(fd, data, length, offset); }
ssize_t pread64(int fd, void *data, size_t length, off64_t offset) { return read_at(fd, data, length, offset); }

static int sync_with(int (*call)(int), int fd) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return call(fd);
    if (fails(SYNC_FAILS, EIO)) return -1;
    RECORDED(int, call(fd), note_file('s', fd, path, 0, "", 0));
}

int fsync(int fd) { return sync_with(REAL(fsync), fd); }
int fdatasync(int fd) { return sync_with(REAL(fdatasync), fd); }

static int cut_at(int fd, off_t length) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return REAL(ftruncate)(fd, length);
    if (fails(WRITE_FAILS, EIO)) return -1;
    RECORDED(int, REAL(ftruncate)(fd, length), note_file('t', fd, path, length, "", 0));
}

int ftruncate(int fd, off_t length) { return cut_at(fd, length); }
int ftruncate64(int fd, off64_t length) { return cut_at(fd, length); }

static int opened(int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat found;
    if (!full_path(directory, name, path)) return REAL(openat)(directory, name, flags, mode);
    if (!(flags & O_DIRECTORY) && fails(OPEN_FAILS, EIO)) return -1;
    if (record < 0) return REAL(openat)(directory, name, flags, mode);
    pthread_mutex_lock(&in_order);
    int is_new = (flags & O_CREAT) && lstat(path, &found) != 0;
    int fd = REAL(openat)(directory, name, flags, mode);
    if (fd >= 0 && is_new) note_file('c', fd, path, 0, "", 0);
    else if (fd >= 0 && (flags & O_TRUNC)) note_file('t', fd, path, 0, "", 0);
    pthread_mutex_unlock(&in_order);
    return fd;
}

#define OPENED(directory)                                                      \
    mode_t mode = 0;                                                           \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                     \
        va_list more;                                                          \
        va_start(more, flags);                                                 \
        mode = va_arg(more, mode_t);                                           \
        va_end(more);                                                          \
    }                                                                          \
    return opened(directory, path, flags, mode)

int open(const char *path, int flags, ...) { OPENED(AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPENED(AT_FDCWD); }
int openat(int directory, const char *path, int flags, ...) { OPENED(directory); }
int openat64(int directory, const char *path, int flags, ...) { OPENED(directory); }

static int named(char kind, int done, const char *from, const char *to) {
    struct stat found = {0};
    if (done == 0) {
        lstat(to[0] ? to : from, &found);
        note(kind, from, to, found.st_ino, 0, "", 0);
    }
    return done;
}

#define NAMED(kind, directory, name, call)                                              \
    do {                                                                                \
        char path[PATH_MAX];                                                            \
        if (record < 0 || !full_path(directory, name, path)) return call;               \
        pthread_mutex_lock(&in_order);                                                  \
        int done = named(kind, call, path, "");                                         \
        pthread_mutex_unlock(&in_order);                                                \
        return done;                                                                    \
    } while (0)

#define NAMED_AGAIN(kind, from_directory, from, to_directory, to, call)                 \
    do {                                                                                \
        char path[PATH_MAX], other[PATH_MAX];                                           \
        int is_ours = record >= 0 && full_path(from_directory, from, path);             \
        if (!is_ours || !full_path(to_directory, to, other)) return call;               \
        pthread_mutex_lock(&in_order);                                                  \
        int done = named(kind, call, path, other);                                      \
        pthread_mutex_unlock(&in_order);                                                \
        return done;                                                                    \
    } while (0)

int unlink(const char *name) { NAMED('u', AT_FDCWD, name, REAL(unlink)(name)); }
int unlinkat(int directory, const char *name, int flags) {
    NAMED('u', directory, name, REAL(unlinkat)(directory, name, flags));
}
int rmdir(const char *name) { NAMED('u', AT_FDCWD, name, REAL(rmdir)(name)); }
int mkdir(const char *name, mode_t mode) { NAMED('m', AT_FDCWD, name, REAL(mkdir)(name, mode)); }
int mkdirat(int directory, const char *name, mode_t mode) {
    NAMED('m', directory, name, REAL(mkdirat)(directory, name, mode));
}
int rename(const char *from, const char *to) { NAMED_AGAIN('r', AT_FDCWD, from, AT_FDCWD, to, REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    NAMED_AGAIN('r', a, from, b, to, REAL(renameat)(a, from, b, to));
}
int link(const char *from, const char *to) { NAMED_AGAIN('l', AT_FDCWD, from, AT_FDCWD, to, REAL(link)(from, to)); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    NAMED_AGAIN('l', a, from, b, to, REAL(linkat)(a, from, b, to, flags));
}

/* The wall clock. libfaketime does more, and breaks sleeps until an instant of the monotonic clock. */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = REAL(clock_gettime)(clock, now);
    if (done == 0 && control != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += control->seconds_ahead;
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int done = REAL(gettimeofday)(now, zone);
    if (done == 0 && control != NULL) now->tv_sec += control->seconds_ahead;
    return done;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}
