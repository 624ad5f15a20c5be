# Everything that applies to all our targets, in one interface target.
add_library(ra_options INTERFACE)
target_include_directories(ra_options INTERFACE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(ra_options INTERFACE _GNU_SOURCE)
target_link_libraries(ra_options INTERFACE m)
target_compile_options(ra_options INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
    -fno-math-errno -ffp-contract=fast)

# Held by src, not by tests: Criterion's macros do not pass them.
add_library(ra_strict INTERFACE)
target_link_libraries(ra_strict INTERFACE ra_options)
target_compile_options(ra_strict INTERFACE -Wconversion -Wno-sign-conversion -Wpointer-arith)

# Integer constants are enumerators here; of those in float64 newer releases of clang warn, as
# -Wextra and -Wconversion say, each for itself.
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    target_compile_options(ra_options INTERFACE -Wno-enum-float-conversion)
    target_compile_options(ra_strict INTERFACE
        "SHELL:-Wconversion -Wno-sign-conversion -Wno-enum-float-conversion")
endif()

# Lines are what reports name; more than them costs a quarter of the time to compile.
if(RA_SANITIZE)
    target_compile_options(ra_options INTERFACE
        -fsanitize=${RA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
    target_link_options(ra_options INTERFACE -fsanitize=${RA_SANITIZE})
endif()

if(RA_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "RA_FUZZ needs clang: use the preset fuzz, or CMAKE_C_COMPILER=clang")
    endif()
    target_compile_options(ra_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
