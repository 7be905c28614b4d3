# Warnings, sanitizers, and flow_library(), which defines every library of this project.
set(FLOW_CUDA AUTO CACHE STRING "Build CUDA kernels: AUTO, ON or OFF")
set(FLOW_CUDA_ARCHITECTURES all CACHE STRING "GPUs of the CUDA kernels: all that are supported, none, or a list in the form of CMAKE_CUDA_ARCHITECTURES")
set(FLOW_NVTX AUTO CACHE STRING "Build ranges for profilers (NVTX): AUTO, ON or OFF")
set(FLOW_NCCL AUTO CACHE STRING "Build NCCL collectives: AUTO, ON or OFF")
set(FLOW_UCX AUTO CACHE STRING "Build the UCX transport: AUTO, ON or OFF")
set(FLOW_LIBEDIT AUTO CACHE STRING "Build line editing of `flow repl`: AUTO, ON or OFF")
set(FLOW_GRPC AUTO CACHE STRING "Build services over gRPC: AUTO, ON or OFF")
set(FLOW_SANITIZE "" CACHE STRING "Sanitizers, in the form of -fsanitize=")
option(FLOW_PORTABLE "Build programs that need only glibc and the C++ runtime, and a tarball of them" OFF)
option(FLOW_FUZZ "Build the fuzz targets (clang with libFuzzer)" OFF)

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(flow_flags INTERFACE)
target_compile_options(flow_flags INTERFACE -Wall -Wextra -Wpedantic -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # With -O3 this compiler warns of overlapping copies inside std::string (GCC bug 105651).
  target_compile_options(flow_flags INTERFACE $<$<CONFIG:Release>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A sanitizer may prevent `omp simd`.
  target_compile_options(flow_flags INTERFACE -Wno-pass-failed)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC mistakes joined sources for headers.
  target_compile_options(flow_flags INTERFACE -Wno-subobject-linkage)
endif()
if(FLOW_SANITIZE)
  # -g1 gives the lines of a report. Checks that ASan duplicates are disabled: null and object-size
  # would take a third of a sanitized build's time.
  add_compile_options(-fsanitize=${FLOW_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g1)
  # GCC's documentation says that -fsanitize causes false positives of this warning.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(flow_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(FLOW_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
  add_link_options(-fsanitize=${FLOW_SANITIZE})
endif()

# flow_library(NAME libraries…): a static library of every .cc in this folder.
function(flow_library name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARGN})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/engine/include)
  target_link_libraries(${name} PUBLIC ${ARGN} PRIVATE flow_flags)
endfunction()

# All presets but `debug` compile several sources at a time (CMAKE_UNITY_BUILD), which takes half the time.
# flow_apart(FILES…): sources of this folder that are always compiled alone, because a name in them
# collides with one of another source.
function(flow_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# flow_proto(TARGET FILES…): generates FILE.pb.{h,cc} of this folder, included as "engine/…/FILE.pb.h".
function(flow_proto target)
  foreach(proto ${ARGN})
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
    string(REGEX REPLACE "\\.proto$" ".pb" stem ${CMAKE_BINARY_DIR}/generated/${relative})
    get_filename_component(folder ${stem} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${stem}.cc ${stem}.h
      COMMAND protobuf::protoc --cpp_out=${CMAKE_BINARY_DIR}/generated -I${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${proto} VERBATIM)
    target_sources(${target} PRIVATE ${stem}.cc)
    set_source_files_properties(${stem}.cc PROPERTIES COMPILE_OPTIONS "-w")
  endforeach()
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_BINARY_DIR}/generated)
endfunction()
