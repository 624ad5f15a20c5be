# What `cmake --install` puts where: library, headers, command, configurations, and the two ways to
# find them, pkg-config (ringattn.pc) and a CMake package (ringattn::ringattn).
include(CMakePackageConfigHelpers)

# The installed command finds a shared libringattn beside it, and an MPI that lies elsewhere.
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(ringattn ringattn_tool PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
set_target_properties(ringattn_tool PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")

install(TARGETS ringattn EXPORT ringattnTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS ringattn_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/ringattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(DIRECTORY configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/ringattn/configs)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ringattn)
install(EXPORT ringattnTargets NAMESPACE ringattn:: DESTINATION ${package_dir})
configure_package_config_file(cmake/ringattnConfig.cmake.in
    ${PROJECT_BINARY_DIR}/ringattnConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ringattnConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ringattnConfig.cmake
              ${PROJECT_BINARY_DIR}/ringattnConfigVersion.cmake DESTINATION ${package_dir})

# What a static libringattn.a needs besides itself; a shared one brings it along.
set(RA_PC_LIBS "")
set(RA_PC_REQUIRES "")
if(NOT BUILD_SHARED_LIBS)
    set(RA_PC_LIBS " -lm -pthread -ldl")
    set(RA_PC_REQUIRES "hwloc libxxhash")
    foreach(library ${MPI_C_LIBRARIES} ${OpenMP_C_LIBRARIES})
        string(APPEND RA_PC_LIBS " ${library}")
    endforeach()
    if(RA_HAVE_CUDA)
        string(APPEND RA_PC_LIBS " ${CUDA_cudart_static_LIBRARY} -ldl -lrt")
    endif()
endif()
# Relative, so that the tree can be installed under any --prefix and moved; but folders that are set
# as absolute paths are where they are.
file(RELATIVE_PATH RA_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" RA_PC_PREFIX "${RA_PC_PREFIX}")
foreach(dir INCLUDEDIR LIBDIR)
    set(RA_PC_${dir} "\${prefix}")
    cmake_path(APPEND RA_PC_${dir} "${CMAKE_INSTALL_${dir}}")
endforeach()
configure_file(cmake/ringattn.pc.in ${PROJECT_BINARY_DIR}/ringattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ringattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
