/* Loaded into every process of a simulated host (LD_PRELOAD): its wall clock is OFFSET seconds ahead of the others. The
 * monotonic clock stays, as on a machine whose wall clock was set wrongly. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);

    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(id, at);
    if (!answer && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += OFFSET;
    return answer;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
