#include "tool/plan_points.h"

#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <stdio.h>

json_t *plan_point_of(int ranks, const char *arguments)
{
    static command_result result;
    char line[2048];
    snprintf(line, sizeof(line), "%s --quiet --json=report.json", arguments);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%d ranks, %s: exit code %d\n%s", ranks, arguments, result.code,
                 result.err);
    json_t *root = load_json(command_folder, "report.json");
    const json_t *points = member(root, "points");
    cr_assert_eq(json_array_size(points), 1);
    json_t *point = json_incref(json_array_get(points, 0));
    json_decref(root);
    return point;
}
