/* Ranks that are threads and share a GPU: each with an NCCL_HOSTID of its own, as processes may
 * have. */
#ifndef RINGATTN_TESTS_OWN_HOSTS_H
#define RINGATTN_TESTS_OWN_HOSTS_H

/** From now on, until NCCL_HOSTID is set to something else or to nothing. Link with --wrap=getenv.
 */
void own_hosts_begin(void);

#endif
