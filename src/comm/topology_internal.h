/* Parts of topology.c that tests look at. */
#ifndef RINGATTN_TOPOLOGY_INTERNAL_H
#define RINGATTN_TOPOLOGY_INTERNAL_H

/** CPUs from the text of a cgroup's cpu.max ("200000 100000" is 2); 0: no limit, or not readable.
 */
double ra_quota_parse(const char *text);

#endif
