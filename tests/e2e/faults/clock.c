/* Another clock for one program: cc -shared -fPIC -DAHEAD_SECONDS=120 -o clock.so clock.c; LD_PRELOAD=clock.so
 *
 * All hosts of the simulated cluster share one kernel, and its time namespaces move every clock but the one that
 * tells the time of day. The monotonic clock, and what the kernel itself stamps (files), stay as they are.
 */
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int code = syscall(SYS_clock_gettime, clock, now);

	if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += AHEAD_SECONDS;
	return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;
	int code = clock_gettime(CLOCK_REALTIME, &exact);

	(void)zone;
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return code;
}

time_t time(time_t *now)
{
	struct timespec exact;

	clock_gettime(CLOCK_REALTIME, &exact);
	if (now)
		*now = exact.tv_sec;
	return exact.tv_sec;
}
