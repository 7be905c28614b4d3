# The ctest entries: Catch2 programs, their cases, and the labels `fast`, `slow` and `case`.
option(FLOW_BENCH "Build the benchmarks of tests/bench" ON)
option(FLOW_MUTANTS "Build the faulty programs that tests/sim must detect" ON)
option(FLOW_FUZZ_REPLAY "Build the fuzz targets as programs that replay their seeds" ON)

# flow_test(NAME libraries…): a Catch2 program of every *_test.cc in this folder, as one ctest
# entry.
function(flow_test name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo,Release>:-O1>)  # compiles a quarter faster
  target_link_libraries(${name} PRIVATE ${ARGN} flow_catch_main flow_flags)
  # With durations a timeout shows which case did not end.
  add_test(NAME ${name} COMMAND ${name} --durations yes)
  flow_cases(${name})
  flow_labels()
endfunction()

# flow_labels(): labels each entry of this folder `fast`, or `slow` if flow_slow() names it.
function(flow_labels)
  get_property(is_deferred DIRECTORY PROPERTY FLOW_LABELS)
  if(NOT is_deferred)
    set_property(DIRECTORY PROPERTY FLOW_LABELS ON)
    cmake_language(DEFER CALL flow_label_entries)
  endif()
endfunction()

# flow_slow(ENTRIES…): entries of this folder that take more than about 5 seconds on two cores. An
# entry that this build leaves out may be named. Concurrent runs start them first, so that none of them
# runs alone in the end.
function(flow_slow)
  set_property(DIRECTORY APPEND PROPERTY FLOW_SLOW ${ARGN})
  flow_labels()
endfunction()

# flow_long(ENTRIES…): those that take more than about 30 seconds, which start before the other slow ones.
function(flow_long)
  set_property(DIRECTORY APPEND PROPERTY FLOW_LONG ${ARGN})
  flow_slow(${ARGN})
endfunction()

# Runs at the end of a folder, when all its entries exist.
function(flow_label_entries)
  get_property(entries DIRECTORY PROPERTY TESTS)
  get_property(slow DIRECTORY PROPERTY FLOW_SLOW)
  get_property(long DIRECTORY PROPERTY FLOW_LONG)
  foreach(entry IN LISTS entries)
    if(entry IN_LIST slow)
      set_property(TEST ${entry} APPEND PROPERTY LABELS slow)
      get_property(has_cost TEST ${entry} PROPERTY COST SET)
      if(NOT has_cost AND entry IN_LIST long)
        set_property(TEST ${entry} PROPERTY COST 50)
      elseif(NOT has_cost)
        set_property(TEST ${entry} PROPERTY COST 10)
      endif()
    else()
      set_property(TEST ${entry} APPEND PROPERTY LABELS fast)
    endif()
  endforeach()
endfunction()

# flow_cases(NAME): makes each case of the Catch2 program NAME a ctest entry with the label `case`.
# Nothing is built or run for it: when ctest starts, tests/cases.py reads the names from the
# sources.
function(flow_cases name)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL flow_describe_cases [[${name}]])")
endfunction()

# Runs at the end of a folder, when the program's entry has its environment: writes the input of
# tests/cases.py.
function(flow_describe_cases name)
  get_target_property(sources ${name} SOURCES)
  set(text "program $<TARGET_FILE:${name}>\n")
  # Also the sources of its object libraries.
  get_target_property(libraries ${name} LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    if(TARGET ${library})
      get_target_property(type ${library} TYPE)
      if(type STREQUAL "OBJECT_LIBRARY")
        get_target_property(folder ${library} SOURCE_DIR)
        get_target_property(more ${library} SOURCES)
        foreach(source IN LISTS more)
          get_filename_component(source ${source} ABSOLUTE BASE_DIR ${folder})
          list(APPEND sources ${source})
        endforeach()
      endif()
    endif()
  endforeach()
  foreach(source IN LISTS sources)
    if(source MATCHES "^/.*\\.cc$")
      string(APPEND text "source ${source}\n")
    endif()
  endforeach()
  foreach(property TIMEOUT ENVIRONMENT)
    get_property(values TEST ${name} PROPERTY ${property})
    foreach(value IN LISTS values)
      string(TOLOWER ${property} word)
      string(APPEND text "${word} ${value}\n")
    endforeach()
  endforeach()
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/cases/${name} CONTENT "${text}")
endfunction()
