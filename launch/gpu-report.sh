# shellcheck shell=bash
# What gpu-check.sh found: rows, each with its command, limit and verdict, and the two reports that
# are made of them. Sourced.
#
# Verdicts: passed, FAILED, TIMED OUT, absent (this build or machine does not have it), not run.

row_names=() row_verdicts=() row_values=() row_required=() row_seconds=() row_commands=()
row_notes=()

# Rows as they are, for a later call: a line each, fields between bytes that no text has.
write_rows() {
    local file=$1 i field
    {
        for i in "${!row_names[@]}"; do
            for field in "${row_names[i]}" "${row_verdicts[i]}" "${row_values[i]}" \
                "${row_required[i]}" "${row_seconds[i]}" "${row_commands[i]}" "${row_notes[i]}"; do
                printf '%s\037' "${field//[$'\001'-$'\037']/ }"
            done
            printf '\n'
        done
    } >"$file.part" && mv "$file.part" "$file"
}

read_rows() {
    local name verdict value required seconds command note
    while IFS=$'\037' read -r name verdict value required seconds command note _; do
        put_row "$name" "$verdict" "$value" "$required" "$seconds" "$command" "$note"
    done <"$1"
}

# put_row NAME VERDICT VALUE REQUIRED SECONDS COMMAND NOTE; in place of one of that name.
put_row() {
    local at=${#row_names[@]} i
    for i in "${!row_names[@]}"; do
        [ "${row_names[i]}" != "$1" ] || at=$i
    done
    row_names[at]=$1
    row_verdicts[at]=$2
    row_values[at]=$3
    row_required[at]=$4
    row_seconds[at]=$5
    row_commands[at]=$6
    row_notes[at]=$7
}

# add_row as put_row; what is not known is empty. It is said, too.
add_row() {
    # shellcheck disable=SC2034 # for who asked for the check
    last_verdict=$2
    put_row "$@"
    printf '%-10s %-44s %s\n' "$2" "$1" "${3:+$3 }${4:+(at least $4) }${7}" >&2
}

# No subshells for a row, here and below: a report must not take long where time is over.

# A command as a person would type it in the project's folder, in $text.
command_text() {
    local word
    text=
    for word in "$@"; do
        word=${word//"$root/"/}
        [ "$word" != "$root" ] || word=.
        case $word in
        *[!A-Za-z0-9_./=:,+-]* | '') text+=" '${word//\'/\'\\\'\'}'" ;;
        *) text+=" $word" ;;
        esac
    done
    text=${text# }
}

json_string() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//[$'\001'-$'\037']/ }
    printf '"%s"' "$text"
}

json_number() {
    case $1 in
    '' | *[!0-9.eE+-]*) printf null ;;
    *) printf '%s' "$1" ;;
    esac
}

# In a table a bar would end the cell.
markdown_cell() {
    local text=${1//|/\\|}
    printf ' %s |' "${text//$'\n'/ }"
}

count_verdicts() {
    local verdict count=0
    for verdict in "${row_verdicts[@]}"; do
        [ "$verdict" != "$1" ] || count=$((count + 1))
    done
    printf '%s' "$count"
}

# All rows passed, and there are some.
everything_passed() {
    [ ${#row_names[@]} -gt 0 ] && [ "$(count_verdicts passed)" -eq ${#row_names[@]} ]
}

# "12 of 30 passed, 3 failed, 1 timed out, 14 absent, 0 not run"
summary_text() {
    printf '%s of %s passed, %s failed, %s timed out, %s absent, %s not run' \
        "$(count_verdicts passed)" ${#row_names[@]} "$(count_verdicts FAILED)" \
        "$(count_verdicts 'TIMED OUT')" "$(count_verdicts absent)" "$(count_verdicts 'not run')"
}

# Facts are pairs of name and text: write_json FILE FACT...
write_json() {
    local file=$1 i separator=
    shift
    {
        printf '{\n'
        while [ $# -gt 1 ]; do
            printf '  "%s": %s,\n' "$1" "$(json_string "$2")"
            shift 2
        done
        printf '  "summary": %s,\n  "rows": [' "$(json_string "$(summary_text)")"
        for i in "${!row_names[@]}"; do
            printf '%s\n    {"name": ' "$separator"
            json_string "${row_names[i]}"
            printf ', "verdict": '
            json_string "${row_verdicts[i]}"
            printf ', "value": '
            json_number "${row_values[i]}"
            printf ', "at_least": '
            json_number "${row_required[i]}"
            printf ', "seconds": '
            json_number "${row_seconds[i]}"
            printf ',\n     "command": '
            json_string "${row_commands[i]}"
            printf ',\n     "note": '
            json_string "${row_notes[i]}"
            printf '}'
            separator=,
        done
        printf '\n  ]\n}\n'
    } >"$file.part" && mv "$file.part" "$file"
}

write_markdown() {
    local file=$1 i
    shift
    {
        printf '# ringattn on a GPU\n\n'
        while [ $# -gt 1 ]; do
            printf -- '- %s: %s\n' "$1" "$2"
            shift 2
        done
        printf '\n%s.\n\n' "$(summary_text)"
        printf '| check | verdict | value | at least | s | note | command |\n'
        printf '|---|---|---|---|---|---|---|\n'
        for i in "${!row_names[@]}"; do
            printf '|'
            markdown_cell "${row_names[i]}"
            markdown_cell "${row_verdicts[i]}"
            markdown_cell "${row_values[i]}"
            markdown_cell "${row_required[i]}"
            markdown_cell "${row_seconds[i]}"
            markdown_cell "${row_notes[i]}"
            markdown_cell "\`${row_commands[i]}\`"
            printf '\n'
        done
    } >"$file.part" && mv "$file.part" "$file"
}
