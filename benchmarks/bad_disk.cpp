// Between a process and its disk: from the n-th change of a file below $BAD_DISK on, every change fails, as on a disk that is
// full or has turned read-only; or every change takes long. The system's clock jumps, if asked to. Loaded by LD_PRELOAD.
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {
long counted = 0, first = 0;  // the first that fails; 0 is none
int error = ENOSPC, slow_us = 0, jumps = 0;

template <typename F> F next(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

bool is_below(const char *path) {
    static const char *folder = std::getenv("BAD_DISK");
    return folder && !std::strncmp(path, folder, std::strlen(folder));
}

bool is_below(int file) {
    char link[64], path[PATH_MAX];
    const char *prefix = "/proc/self/fd/";
    std::strcpy(link, prefix);
    char *at = link + std::strlen(prefix), digits[16];
    int n = 0;
    do digits[n++] = '0' + file % 10; while (file /= 10);
    while (n) *at++ = digits[--n];
    *at = 0;
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return false;
    path[length] = 0;
    return is_below(path);
}

bool fails() {  // a change below the folder
    ++counted;
    if (slow_us) usleep(slow_us);
    if (!first || counted < first) return false;
    errno = error;
    return true;
}
}  // namespace

extern "C" {
void bad_disk_from(long number, int code) { counted = 0, first = number, error = code; }
void bad_disk_slow(int microseconds) { slow_us = microseconds; }
void bad_clock(int on) { jumps = on; }
long bad_disk_counted() { return counted; }

ssize_t write(int file, const void *bytes, size_t count) {
    static auto real = next<ssize_t (*)(int, const void *, size_t)>("write");
    return file > 2 && is_below(file) && fails() ? -1 : real(file, bytes, count);
}

int fsync(int file) {
    static auto real = next<int (*)(int)>("fsync");
    return is_below(file) && fails() ? -1 : real(file);
}

int mkdir(const char *path, mode_t mode) {
    static auto real = next<int (*)(const char *, mode_t)>("mkdir");
    return is_below(path) && fails() ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    static auto real = next<int (*)(const char *, const char *)>("rename");
    return is_below(to) && fails() ? -1 : real(from, to);
}

int open64(const char *path, int flags, ...) {
    static auto real = next<int (*)(const char *, int, ...)>("open64");
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return flags & O_CREAT && is_below(path) && fails() ? -1 : real(path, flags, mode);
}

int clock_gettime(clockid_t clock, timespec *now) {
    static auto real = next<int (*)(clockid_t, timespec *)>("clock_gettime");
    int code = real(clock, now);
    if (jumps && clock == CLOCK_REALTIME && now->tv_sec > 0) now->tv_sec += (++jumps % 2 ? 1 : -1) * 3600L * 24 * 365;
    return code;
}
}
