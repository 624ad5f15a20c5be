/*
 * N ranks as threads of one process, for tests: everything happens under one lock, so that ring
 * logic runs under sanitizers. A collective is carried out by the rank that arrives last. One
 * rank's failure is everybody's: after it no buffer is touched again.
 */
#include "comm_local.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool ra_local_wait_for_change(ra_local_group *group, ra_comm *comm, int64_t begin_ns)
{
    int64_t const timeout_ns = comm->timeout_ms * 1000000;
    int64_t const until_ns = ra_max_i64(begin_ns, group->beat_ns) + timeout_ns;
    struct timespec const until = {until_ns / 1000000000, until_ns % 1000000000};
    if (pthread_cond_clockwait(&group->changed, &group->mutex, CLOCK_MONOTONIC, &until) !=
        ETIMEDOUT)
        return true;
    comm->heard_ns = group->beat_ns;
    return ra_clock_ns() - ra_max_i64(begin_ns, group->beat_ns) < timeout_ns;
}

void ra_local_fail(ra_local_group *group)
{
    group->failed = true;
    pthread_cond_broadcast(&group->changed);
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static ra_status local_start(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out)
{
    ra_local_comm *const local = (ra_local_comm *)comm;
    ra_local_group *const group = local->group;
    ra_status status = RA_ERR_PEER;

    pthread_mutex_lock(&group->mutex);
    if (!group->failed) {
        ra_mail *const mail = ra_mail_take(local->mails);
        ra_mail_post(mail, exchange, group->channels, comm->rank, comm->size);
        pthread_cond_broadcast(&group->changed);
        *transfer_out = &mail->base;
        status = RA_OK;
    }
    pthread_mutex_unlock(&group->mutex);
    return status;
}

static void local_beat(ra_comm *comm)
{
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    int64_t const now_ns = ra_clock_ns();
    if (!ra_beat_is_due(comm, now_ns))
        return;
    pthread_mutex_lock(&group->mutex);
    group->beat_ns = now_ns;
    pthread_mutex_unlock(&group->mutex);
}

static ra_status local_wait(ra_comm *comm, ra_transfer *transfer)
{
    ra_mail *const mail = (ra_mail *)transfer;
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    int64_t const begin_ns = ra_clock_ns();
    ra_status status = RA_OK;

    pthread_mutex_lock(&group->mutex);
    while (ra_mail_open_peer(mail) >= 0 && !group->failed) {
        if (!ra_local_wait_for_change(group, comm, begin_ns))
            break;
    }
    int const open_peer = ra_mail_open_peer(mail);
    bool const refused = ra_mail_is_refused(mail);
    if (refused || open_peer >= 0)
        status = refused || group->failed ? RA_ERR_PEER : RA_ERR_TIMEOUT;
    if (status != RA_OK)
        ra_local_fail(group);
    mail->base.in_use = false;
    pthread_mutex_unlock(&group->mutex);

    if (refused)
        return ra_mail_refuse(comm, mail);
    if (status == RA_ERR_TIMEOUT)
        ra_comm_log_timeout(comm, transfer->operation, transfer->step, open_peer);
    return status;
}

static int local_missing_peer(ra_comm *comm, ra_transfer *transfer)
{
    const ra_mail *const mail = (const ra_mail *)transfer;
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    pthread_mutex_lock(&group->mutex);
    int const peer = group->failed ? -1 : ra_mail_open_peer(mail);
    pthread_mutex_unlock(&group->mutex);
    return peer;
}

/* One rank's failure is everybody's. */
static void local_fail(ra_comm *comm)
{
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    pthread_mutex_lock(&group->mutex);
    ra_local_fail(group);
    pthread_mutex_unlock(&group->mutex);
}

/* Has anybody failed, is anybody at work? */
static ra_status local_look(ra_comm *comm)
{
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    pthread_mutex_lock(&group->mutex);
    bool const failed = group->failed;
    comm->heard_ns = group->beat_ns;
    pthread_mutex_unlock(&group->mutex);
    return failed ? RA_ERR_PEER : RA_OK;
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static void destroy_group(ra_local_group *group)
{
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->mutex);
    free(group->hosts);
    free(group->channels);
    free(group->collectives);
    free(group);
}

static void local_destroy(ra_comm *comm)
{
    ra_local_group *const group = ((ra_local_comm *)comm)->group;
    pthread_mutex_lock(&group->mutex);
    bool const last = --group->owner_count == 0;
    pthread_mutex_unlock(&group->mutex);
    if (last)
        destroy_group(group);
    free(comm);
}

static const ra_comm_ops local_ops = {
    .name = "local",
    .start = local_start,
    .beat = local_beat,
    .wait = local_wait,
    .missing_peer = local_missing_peer,
    .look = local_look,
    .fail = local_fail,
    .barrier = ra_local_barrier,
    .broadcast = ra_local_broadcast,
    .reduce = ra_local_reduce,
    .destroy = local_destroy,
};

static ra_local_group *create_group(int ranks, const int *hosts)
{
    size_t const count = (size_t)ranks;
    ra_local_group *const group = calloc(1, sizeof(*group));
    if (group == NULL || pthread_cond_init(&group->changed, NULL) != 0)
        goto err_free_group;
    if (pthread_mutex_init(&group->mutex, NULL) != 0)
        goto err_destroy_cond;
    group->size = ranks;
    group->owner_count = ranks;
    group->collectives = calloc(count, sizeof(*group->collectives));
    group->channels = calloc(count * count, sizeof(*group->channels));
    group->hosts = calloc(count, sizeof(*group->hosts)); /* one host, where none are given */
    if (group->collectives == NULL || group->channels == NULL || group->hosts == NULL) {
        destroy_group(group);
        return NULL;
    }
    if (hosts != NULL)
        memcpy(group->hosts, hosts, count * sizeof(*hosts));
    return group;

err_destroy_cond:
    pthread_cond_destroy(&group->changed);
err_free_group:
    free(group);
    return NULL;
}

/* The hosts of the job, and a name for the one that this rank pretends to be on. */
static void describe_host(ra_comm *comm, const ra_local_group *group, bool several)
{
    comm->hosts = group->hosts;
    if (several)
        snprintf(comm->host, sizeof(comm->host), "host%d", group->hosts[comm->rank]);
}

ra_status ra_comm_create_local(int ranks, const int *hosts, int64_t timeout_ms, ra_comm **comms_out)
{
    RA_ASSERT(ranks >= 1);
    size_t const count = (size_t)ranks;
    int made_count = 0;
    ra_comm **const made = calloc(count, sizeof(void *)); /* the caller sees all of them, or none */
    if (made == NULL)
        goto err_no_memory;
    ra_local_group *const group = create_group(ranks, hosts);
    if (group == NULL)
        goto err_free_list;
    for (; made_count < ranks; made_count++) {
        ra_local_comm *const local = calloc(1, sizeof(*local));
        if (local == NULL)
            goto err_free_comms;
        ra_comm_init(&local->base, &local_ops, made_count, ranks, timeout_ms);
        local->group = group;
        describe_host(&local->base, group, hosts != NULL);
        made[made_count] = &local->base;
    }
    memcpy(comms_out, made, count * sizeof(void *));
    free(made);
    return RA_OK;

err_free_comms:
    while (made_count > 0)
        free(made[--made_count]);
    destroy_group(group);
err_free_list:
    free(made);
err_no_memory:
    return ra_refuse_memory("communicators of one process");
}
