/*
 * Shift the wall clock of one process: preload it, and name a file in LANEQ_CLOCK_FILE.
 *
 * The file holds one signed 64-bit number, microseconds that are added to CLOCK_REALTIME. It is
 * mapped, so that whoever writes to it moves the clock of a process that runs. CLOCK_MONOTONIC
 * and all other clocks are left alone, as an administrator who sets the date leaves them.
 *
 * The kernel is asked directly: looking the real functions up (dlsym) allocates memory, which
 * an allocator that asks for the time while it is set up, as jemalloc does, does not survive.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *shift = &none;

__attribute__((constructor)) static void open_file(void) {
  const char *path = getenv("LANEQ_CLOCK_FILE");
  if (path == NULL) return;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) abort();
  void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) abort();
  close(fd);
  shift = page;
}

int clock_gettime(clockid_t id, struct timespec *at) {
  int status = (int)syscall(SYS_clock_gettime, id, at);
  if (status == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    int64_t ns = at->tv_nsec + *shift % 1000000 * 1000;
    at->tv_sec += *shift / 1000000;
    if (ns < 0) {
      ns += 1000000000;
      at->tv_sec -= 1;
    } else if (ns >= 1000000000) {
      ns -= 1000000000;
      at->tv_sec += 1;
    }
    at->tv_nsec = ns;
  }
  return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int status = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return status;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != NULL) *at = now.tv_sec;
  return now.tv_sec;
}
