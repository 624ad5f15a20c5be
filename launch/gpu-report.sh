# shellcheck shell=bash
# What gpu-check.sh found: rows, each with its command, limit and verdict, and the two reports that
# are made of them. Sourced.
#
# Verdicts: passed, FAILED, TIMED OUT, absent (this build or machine does not have it), not run.
#
# The files are written anew at each check, so what a row is in each of them is made only once, and
# nothing of it in a subshell: a report must not take long where time is over.

row_names=() row_verdicts=() row_lines=() row_json=() row_cells=()

# write_file FILE TEXT...: all of it, or the file stays as it was.
write_file() {
    printf '%s' "${@:2}" >"$1.part" && mv "$1.part" "$1"
}

# Rows as they are, for a later call: a line each, fields between bytes that no text has.
write_rows() {
    write_file "$1" "${row_lines[@]}"
}

read_rows() {
    local name verdict value required seconds command note
    while IFS=$'\037' read -r name verdict value required seconds command note _; do
        put_row "$name" "$verdict" "$value" "$required" "$seconds" "$command" "$note"
    done <"$1"
}

# put_row NAME VERDICT VALUE REQUIRED SECONDS COMMAND NOTE; in place of one of that name.
put_row() {
    local at=${#row_names[@]} i text json='' line='' cells='|'
    local keys=(name verdict value at_least seconds command note)
    for i in "${!row_names[@]}"; do
        [ "${row_names[i]}" != "$1" ] || at=$i
    done
    row_names[at]=$1
    row_verdicts[at]=$2
    for text in "$@"; do
        line+=${text//[$'\001'-$'\037']/ }$'\037'
    done
    row_lines[at]=$line$'\n'
    for text in "${@:1:5}" "$7" "\`$6\`"; do
        text=${text//|/\\|} # a bar would end the cell
        cells+=" ${text//$'\n'/ } |"
    done
    row_cells[at]=$cells$'\n'
    for i in "${!keys[@]}"; do
        case ${keys[i]} in
        value | at_least | seconds) json_number "${@:i+1:1}" ;;
        *) json_string "${@:i+1:1}" ;;
        esac
        json+="${json:+, }\"${keys[i]}\": $text"
    done
    row_json[at]="{$json}"
}

# add_row as put_row; what is not known is empty. It is said, too.
add_row() {
    # shellcheck disable=SC2034 # for who asked for the check
    last_verdict=$2
    put_row "$@"
    printf '%-10s %-44s %s\n' "$2" "$1" "${3:+$3 }${4:+(at least $4) }${7}" >&2
}

# Functions below leave what they make in $text.

# A command as a person would type it in the project's folder.
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
    text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=\"${text//[$'\001'-$'\037']/ }\"
}

json_number() {
    case $1 in
    '' | *[!0-9.eE+-]*) text=null ;;
    *) text=$1 ;;
    esac
}

# "12 of 30 passed, 3 failed, 1 timed out, 14 absent, 0 not run". Its exit code is 0 where all
# passed, and there are some.
summarize() {
    local verdict passed=0 failed=0 late=0 absent=0 left=0 all=${#row_verdicts[@]}
    for verdict in "${row_verdicts[@]}"; do
        case $verdict in
        passed) passed=$((passed + 1)) ;;
        FAILED) failed=$((failed + 1)) ;;
        'TIMED OUT') late=$((late + 1)) ;;
        absent) absent=$((absent + 1)) ;;
        'not run') left=$((left + 1)) ;;
        esac
    done
    text="$passed of $all passed, $failed failed, $late timed out, $absent absent, $left not run"
    [ "$passed" -gt 0 ] && [ "$passed" -eq "$all" ]
}

# Facts are pairs of name and text: write_json FILE FACT...
write_json() {
    local file=$1 i text json=$'{\n' separator=
    shift
    while [ $# -gt 1 ]; do
        json_string "$2"
        json+="  \"$1\": $text,"$'\n'
        shift 2
    done
    summarize
    json+="  \"summary\": \"$text\","$'\n  "rows": ['
    for i in "${!row_json[@]}"; do
        json+=$separator$'\n    '${row_json[i]}
        separator=,
    done
    write_file "$file" "$json"$'\n  ]\n}\n'
}

write_markdown() {
    local file=$1 text facts=
    shift
    while [ $# -gt 1 ]; do
        facts+="- $1: $2"$'\n'
        shift 2
    done
    summarize
    write_file "$file" $'# ringattn on a GPU\n\n' "$facts" $'\n'"$text"$'.\n\n' \
        $'| check | verdict | value | at least | s | note | command |\n' \
        $'|---|---|---|---|---|---|---|\n' "${row_cells[@]}"
}
