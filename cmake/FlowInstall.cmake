# cmake --install: programs, one shared library with the public headers, find_package(flow),
# pkg-config, the standard modules and their editor annotations.
include(CMakePackageConfigHelpers)

# The public library contains all implementations of the public headers in one file; host programs
# link nothing else.
add_library(flow_shared SHARED ${PROJECT_SOURCE_DIR}/cmake/libflow.cc $<TARGET_OBJECTS:flow_base>
            $<TARGET_OBJECTS:flow_crypto> $<TARGET_OBJECTS:flow_process> $<TARGET_OBJECTS:flow_value>
            $<TARGET_OBJECTS:flow_log> $<TARGET_OBJECTS:flow_blobs> $<TARGET_OBJECTS:flow_collective> $<TARGET_OBJECTS:flow_runs>
            $<TARGET_OBJECTS:flow_submission> $<TARGET_OBJECTS:flow_runtime> $<TARGET_OBJECTS:flow_query>
            $<TARGET_OBJECTS:flow_head> $<TARGET_OBJECTS:flow_client> $<TARGET_OBJECTS:flow_api>)
add_library(flow::flow ALIAS flow_shared)
set_target_properties(flow_shared PROPERTIES OUTPUT_NAME flow EXPORT_NAME flow VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_libraries(flow_shared PRIVATE flow_api flow_flags)
target_compile_features(flow_shared INTERFACE cxx_std_20)
target_include_directories(flow_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flow)
install(TARGETS flow flow-executor RUNTIME)
install(TARGETS flow_shared EXPORT flowTargets LIBRARY)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine/include/flow DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flowTargets NAMESPACE flow:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/flowConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/flowConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flowConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flowConfig.cmake ${PROJECT_BINARY_DIR}/flowConfigVersion.cmake
        DESTINATION ${package_dir})
configure_file(${PROJECT_SOURCE_DIR}/cmake/flow.pc.in ${PROJECT_BINARY_DIR}/flow.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flow.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/stdlib/ DESTINATION ${CMAKE_INSTALL_DATADIR}/flow
        FILES_MATCHING PATTERN "*.lua" PATTERN "*.json" PATTERN "*.md")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The library looks for the executor in its own folder too: a link, because lib may be two levels
# below.
install(CODE "
  set(lib \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/flow\")
  set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  file(MAKE_DIRECTORY \"\${lib}\")
  file(RELATIVE_PATH target \"\${lib}\" \"\${bin}/flow-executor\")
  file(CREATE_LINK \"\${target}\" \"\${lib}/flow-executor\" SYMBOLIC)
")
