/* How many groups a job is computed in, and in how many rounds its keys travel: the search of auto,
   which a ring and its prediction go through alike. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <math.h>

/* ---- groups beside one plan ------------------------------------------------------------------ */

/* The next number of groups after `count` that makes the largest group smaller; the numbers between
   save nothing. */
static int32_t more_groups(const ra_ring_config *c, int32_t count)
{
    if (count >= c->heads)
        return count + c->heads;
    ra_head_group const largest = ra_ring_group_of(c, count, count - 1);
    bool const of_keys = count < c->kv_heads;
    int32_t const smaller = (of_keys ? largest.kv_count : largest.q_count) - 1;
    RA_ASSERT(smaller >= 1);
    return of_keys ? (int32_t)ra_div_ceil(c->kv_heads, smaller)
                   : c->kv_heads * (int32_t)ra_div_ceil(c->heads / c->kv_heads, smaller);
}

int64_t ra_ring_more_plan_bytes(const ra_ring_config *c, int32_t groups, int32_t plans,
                                const ra_plan_bytes *whole, double stretch)
{
    int64_t const sets = plans / ra_ring_parts(c, groups);
    if (plans == 1)
        return 0;
    return (int64_t)((stretch - 1) * (double)whole->maps) + (sets - 1) * whole->chunks +
           (plans - 1) * whole->others;
}

ra_groups_found ra_ring_find_groups(const ra_ring_config *c, ra_group_bytes *bytes_of,
                                    const void *context, int64_t room, int64_t plan_bytes,
                                    int32_t fewest, int32_t most)
{
    bool const futile = room < -plan_bytes;
    ra_groups_found found = {RA_GROUPS_NONE, futile ? RA_GROUPS_FUTILE : RA_GROUPS_NONE,
                             c->head_groups, 0};
    int64_t buffers, least_bytes = INT64_MAX;
    int32_t groups = c->head_groups;
    if (futile)
        most = (int32_t)ra_min_i64(most, c->heads); /* parts of queries have plans of their own */
    if (groups == 0)
        groups = fewest > 1 && bytes_of(context, fewest, &buffers) <= room ? fewest : 1;
    for (;; groups = more_groups(c, groups)) {
        int64_t const needed = bytes_of(context, groups, &buffers);
        if (needed - buffers <= room && found.could == RA_GROUPS_NONE)
            found.could = groups;
        if (needed <= room) {
            found.fit = found.least = groups;
            return found;
        }
        if (groups >= c->kv_heads && needed < least_bytes) {
            found.least = groups;
            least_bytes = needed;
        }
        if (c->head_groups != 0 || groups >= most)
            return found;
    }
}

/* ---- rounds ---------------------------------------------------------------------------------- */

int32_t ra_plan_first_rounds(const ra_ring_config *config, const ra_teams *teams)
{
    return teams->count > 1 ? (int32_t)ra_max_i64(1, config->rounds) : 1;
}

int32_t ra_plan_more_rounds(const ra_ring_config *config, const ra_teams *teams, int32_t rounds)
{
    enum { STEPS_MAX = 4096 };
    bool const can = config->rounds == 0 && config->schedule != RA_SCHEDULE_RING &&
                     teams->count > 1 && 2 * rounds <= RA_ROUNDS_MAX &&
                     ra_plan_count_steps(teams, 2 * rounds) <= STEPS_MAX;
    return can ? 2 * rounds : 0;
}

bool ra_ring_may_choose(const ra_ring_config *c, const ra_teams *teams)
{
    return c->head_groups == 0 || ra_plan_more_rounds(c, teams, 1) > 0;
}

/*
 * From the first number of rounds on, as long as more might do with fewer groups than fit so far.
 * Up to kv_heads groups, which send nothing twice, the first rounds that do are taken; else those
 * of the fewest groups; or, if none fit, those that lack least.
 */
typedef struct rounds_search {
    int32_t rounds; /* to plan now */
    int32_t best_groups, best_rounds;
    int64_t least_lack_bytes;
    bool is_last;
} rounds_search;

/* With what was found in these rounds: whether to plan again, in others. `failed` as below. */
static bool goes_on(rounds_search *s, const ra_plans_maker *m, int32_t failed,
                    ra_groups_found found)
{
    if (s->is_last || found.fit <= m->config->kv_heads)
        return false;
    bool const fits = found.fit != RA_GROUPS_NONE;
    bool const better = fits ? found.fit < s->best_groups
                             : s->best_groups == RA_GROUPS_NONE && (failed & s->rounds) == 0 &&
                                   found.lack_bytes < s->least_lack_bytes;
    if (better) {
        s->best_groups = found.fit;
        s->least_lack_bytes = found.lack_bytes;
        s->best_rounds = s->rounds;
    }
    int32_t const tried = s->rounds, more = ra_plan_more_rounds(m->config, m->teams, tried);
    bool const may_do = more > 0 && found.could < s->best_groups;
    s->is_last = !may_do;
    s->rounds = may_do ? more : s->best_rounds;
    return s->rounds != tried;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* What was tried. Where nothing fits by the estimate, rounds are tried from those that lack least
   on. */
typedef struct plans_search {
    double stretch;
    int32_t failed; /* bits: powers of two, rounds that are not tried again where nothing fits */
    int32_t tries;
    ra_plans_choice best; /* that lacks least; groups 0: none */
    int64_t best_lack_bytes;
} plans_search;

/* The one plan, in as many rounds as the search for them ends with. */
static ra_status make_whole(const ra_plans_maker *m, const plans_search *s, int32_t *rounds_out,
                            ra_groups_found *found_out)
{
    int32_t const first = ra_plan_first_rounds(m->config, m->teams);
    rounds_search search = {.rounds = first,
                            .best_groups = RA_GROUPS_NONE,
                            .best_rounds = first,
                            .least_lack_bytes = INT64_MAX};
    ra_status status;
    do {
        /* No room for the maps of more rounds loses nothing where those of fewer were made. */
        bool const may_lack = search.rounds > first && !search.is_last;
        *rounds_out = search.rounds;
        status = m->make_whole(m->context, search.rounds, s->stretch, may_lack, found_out);
    } while (status == RA_OK && goes_on(&search, m, s->failed, *found_out));
    return status;
}

/* Whether others may be tried if the plans of what was found do not fit. */
static bool may_try_others(const ra_plans_maker *m, const plans_search *s, ra_groups_found found,
                           int32_t rounds)
{
    enum { TRIES_MAX = 6 };
    bool const others = found.could != RA_GROUPS_FUTILE && (s->failed & rounds) == 0 &&
                        ra_plan_more_rounds(m->config, m->teams, 1) > 0;
    return s->tries < TRIES_MAX && ra_ring_may_choose(m->config, m->teams) &&
           (found.fit != RA_GROUPS_NONE || others);
}

/* Whether to end with the best that was tried rather than with what was found. */
static bool returns(const plans_search *s, ra_groups_found found, int32_t rounds)
{
    return found.fit == RA_GROUPS_NONE && s->best.groups != 0 &&
           ((s->failed & rounds) != 0 || s->best_lack_bytes < found.lack_bytes);
}

static void keep_try(plans_search *s, ra_groups_found found, ra_plans_choice choice,
                     ra_plans_made made)
{
    ++s->tries;
    if (s->best.groups == 0 || made.lack_bytes < s->best_lack_bytes) {
        s->best = choice;
        s->best_lack_bytes = made.lack_bytes;
    }
    if (found.fit == RA_GROUPS_NONE)
        s->failed |= choice.rounds;
    else
        s->stretch = made.lack_bytes == RA_LACK_UNKNOWN ? 2 * s->stretch
                                                        : fmax(1.1 * s->stretch, made.stretch);
}

ra_status ra_choose_plans(const ra_plans_maker *m)
{
    plans_search s = {.stretch = 1, .tries = 1};
    for (;;) {
        ra_groups_found found;
        int32_t rounds;
        ra_status status = make_whole(m, &s, &rounds, &found);
        if (status != RA_OK)
            return status;
        bool const may_lack = may_try_others(m, &s, found, rounds);
        ra_plans_choice choice = {ra_groups_taken(found), rounds};
        if (!may_lack && returns(&s, found, rounds))
            choice = s.best;
        ra_plans_made made = {0};
        status = m->make_all(m->context, choice, may_lack, &made);
        if (status != RA_OK || !may_lack || made.lack_bytes <= 0)
            return status;
        keep_try(&s, found, choice, made);
    }
}
