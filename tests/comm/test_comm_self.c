/* The contract on one rank alone. */
#include "comm/contract.h"

#include <criterion/criterion.h>

Test(self, keeps_the_contract)
{
    ra_comm *comm = NULL;
    cr_assert_eq(ra_comm_create_self(60000, &comm), RA_OK);
    cr_expect_str_eq(ra_comm_name(comm), "self");
    cr_expect_eq(ra_comm_size(comm), 1);
    cr_expect_eq(contract_run_healthy(comm, 4711), 0);
    ra_comm_destroy(comm);
}

Test(self, fails_as_the_contract_says)
{
    contract_capture_log();
    for (int i = 0; i < contract_breaking_count; i++) {
        ra_comm *comm = NULL;
        if (contract_breaking[i].ranks_min > 1)
            continue;
        contract_clear_log();
        cr_assert_eq(ra_comm_create_self(60000, &comm), RA_OK);
        int const failures = contract_breaking[i].body(comm);
        cr_expect_eq(failures, 0, "%s", contract_breaking[i].name);
        if (failures > 0)
            contract_print_log();
        ra_comm_destroy(comm);
    }
}
