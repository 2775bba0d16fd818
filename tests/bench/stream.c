/* The triad of STREAM, a[i] = b[i] + 3 * c[i], over and over.
 *
 *   stream SECONDS MEBIBYTES     of each of the three arrays
 *
 * Prints the best rate of all passes in MB/s, as STREAM counts it: three arrays moved in each pass.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: stream SECONDS MEBIBYTES\n");
        return 2;
    }
    double seconds = atof(argv[1]);
    size_t bytes = (size_t)atol(argv[2]) << 20, n = bytes / sizeof(double);
    double *a = malloc(bytes), *b = malloc(bytes), *c = malloc(bytes);
    if (!a || !b || !c) {
        fprintf(stderr, "stream: not enough memory\n");
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        a[i] = 0;
        b[i] = i;
        c[i] = 1;
    }
    double best = 0, end = now() + seconds;
    do {
        double began = now();
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3 * c[i];
        double rate = 3 * bytes / 1e6 / (now() - began);
        if (rate > best)
            best = rate;
    } while (now() < end);
    if (a[n - 1] != n + 2) { /* what was computed must be used */
        fprintf(stderr, "stream: wrong result\n");
        return 1;
    }
    printf("%.1f\n", best);
    return 0;
}
