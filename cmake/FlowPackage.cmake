# cpack -G DEB: Debian packages of what cmake --install installs. `flow` has the programs and
# `libflow-dev` the library, if that is built. FlowPortable makes a tarball of the same components.
set(FLOW_MAINTAINER "The flow authors <flow@example.org>" CACHE STRING "The maintainer that Debian packages name")
set(FLOW_DEBIAN_REVISION 1 CACHE STRING "The revision of Debian packages of this version")

# What only a Debian package has: the license by Debian's name, and compressed lists of changes.
function(flow_install_debian)
  set(made ${PROJECT_BINARY_DIR}/generated/debian)
  install(CODE "
    set(made ${made})
    set(changes ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
    set(version ${PROJECT_VERSION}-${FLOW_DEBIAN_REVISION})
    set(maintainer \"${FLOW_MAINTAINER}\")
    include(${PROJECT_SOURCE_DIR}/cmake/package/write_changes.cmake)" COMPONENT debian EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/package/copyright ${made}/changelog.gz ${made}/changelog.Debian.gz
          DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT debian EXCLUDE_FROM_ALL)
  # libflow-dev needs `flow` of the same version, so it may have its folder.
  install(CODE "
    set(doc \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc\")
    file(MAKE_DIRECTORY \"\${doc}\")
    file(CREATE_LINK flow \"\${doc}/libflow-dev\" SYMBOLIC)" COMPONENT debian_library EXCLUDE_FROM_ALL)
endfunction()

flow_install_debian()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME flow)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${FLOW_MAINTAINER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package/components.cmake)
set(CPACK_FLOW_LIBRARY ${PROJECT_BINARY_DIR}/libflow.so.${PROJECT_VERSION})

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${FLOW_DEBIAN_REVISION})
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_FLOW_PACKAGE_NAME flow)
set(CPACK_DEBIAN_FLOW_PACKAGE_SECTION science)
# Loaded when they are needed, so dpkg-shlibdeps does not see them. Matrices need OpenBLAS, URLs
# libcurl, a cluster UCX. The GPU's driver is only suggested: it has to fit the machine's kernel, and in a container comes
# from outside. A build without CUDA does not use it.
set(CPACK_DEBIAN_FLOW_PACKAGE_DEPENDS "libopenblas0, libcurl4 (>= 7.85)")
if(FLOW_HAS_UCX)
  set(CPACK_DEBIAN_FLOW_PACKAGE_RECOMMENDS libucx0)
endif()
set(CPACK_DEBIAN_FLOW_PACKAGE_SUGGESTS graphviz)
if(FLOW_HAS_CUDA)
  string(APPEND CPACK_DEBIAN_FLOW_PACKAGE_SUGGESTS ", libcuda1, libnvidia-ml1")
endif()

set(CPACK_DEBIAN_LIBFLOW_PACKAGE_NAME libflow-dev)
set(CPACK_DEBIAN_LIBFLOW_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBFLOW_PACKAGE_DEPENDS "flow (= ${PROJECT_VERSION}-${FLOW_DEBIAN_REVISION})")

set(CPACK_DEBIAN_FLOW_DESCRIPTION "durable pipelines in Lua
flow runs pipelines of functions and shell commands, with the data that
passes from one to the next. Each result is kept: a run that was killed
continues where it stopped, and a second run repeats only what has changed.")
set(CPACK_DEBIAN_LIBFLOW_DESCRIPTION "durable pipelines in Lua (library and headers)
The library, headers, CMake package and pkg-config file for C++ programs
that run pipelines of flow.")

include(CPack)
cpack_add_component_group(flow)
cpack_add_component_group(libflow)
cpack_add_component(programs GROUP flow)
cpack_add_component(debian GROUP flow)
cpack_add_component(library GROUP libflow)
cpack_add_component(debian_library GROUP libflow)
