# Read by cpack for each package: which components it has. The library is packed if it is built.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_COMPONENTS_ALL programs debian)
  if(EXISTS ${CPACK_FLOW_LIBRARY})
    list(APPEND CPACK_COMPONENTS_ALL library debian_library)
  endif()
endif()
