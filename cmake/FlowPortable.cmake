# FLOW_PORTABLE: programs that need only glibc and the C++ runtime, and `package`, a tarball of them
# that runs on machines with newer versions of these and no other packages. Libraries that are
# loaded at run time stay so: the GPU's driver, cuBLASLt, cuDNN and NVRTC are the machine's;
# OpenBLAS and libcurl with all that it links are included, and so is simdjson, which Debian has only
# as a shared library.
include(GNUInstallDirs)
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(OPENSSL_USE_STATIC_LIBS ON)
set(Protobuf_USE_STATIC_LIBS ON)
set(ZLIB_USE_STATIC_LIBS ON)
# RPATH and not RUNPATH: a loaded library finds its dependencies in the same folder.
add_link_options(-Wl,--disable-new-dtags)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

add_library(flow_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cc)
target_compile_definitions(flow_fmt PUBLIC FMT_SHARED PRIVATE FMT_EXPORT)
add_library(fmt::fmt ALIAS flow_fmt)

# The dependencies of RocksDB, in the order that the linker needs.
function(flow_rocksdb_parts out)
  set(parts ${ROCKSDB_LIBRARY})
  foreach(part gflags snappy z bz2 lz4 zstd)
    find_library(FLOW_${part}_ARCHIVE ${part} REQUIRED)
    list(APPEND parts ${FLOW_${part}_ARCHIVE})
  endforeach()
  set(${out} ${parts} ${CMAKE_DL_LIBS} Threads::Threads PARENT_SCOPE)
endfunction()

# flow_carry(LIBRARY…): installs a shared library by the name under which it is loaded.
function(flow_carry)
  foreach(name ${ARGN})
    find_file(FLOW_${name}_FILE ${name} PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} REQUIRED)
    file(REAL_PATH ${FLOW_${name}_FILE} file)
    install(FILES ${file} DESTINATION lib RENAME ${name})
  endforeach()
endfunction()

# flow_carry_linked(LIBRARY): the same for all shared libraries that a library links, except glibc's.
function(flow_carry_linked name)
  execute_process(COMMAND ldd ${FLOW_${name}_FILE} OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^ \t\n]+ => /[^ \n]+" links "${lines}")
  foreach(link ${links})
    string(REGEX REPLACE " => .*" "" linked "${link}")
    if(NOT linked MATCHES "^lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\\+\\+)[.]so")
      flow_carry(${linked})
    endif()
  endforeach()
endfunction()

# What FlowInstall installs, the libraries, and checks of a machine's GPUs. Call it after all targets
# exist.
function(flow_package)
  install(TARGETS gpu_check bench_kernels RUNTIME)
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/tests/gpu/run DESTINATION bin RENAME gpu_suite)
  install(FILES ${PROJECT_SOURCE_DIR}/tests/bench/bench_generate.py ${PROJECT_SOURCE_DIR}/tests/bench/bench_training.py DESTINATION bin)
  foreach(name torch_speed latency tasks)
    install(FILES ${PROJECT_SOURCE_DIR}/tests/gpu/${name}.py DESTINATION bin)
  endforeach()
  install(FILES ${PROJECT_SOURCE_DIR}/tests/state/place.py DESTINATION state)
  foreach(name torch_gpt torch_operations)
    install(FILES ${PROJECT_SOURCE_DIR}/tests/interop/${name}.py DESTINATION interop)
  endforeach()
  flow_carry(libopenblas.so.0 libgfortran.so.5 libquadmath.so.0 libsimdjson.so.14 libssl.so.3 libcrypto.so.3
             libz.so.1 libbrotlidec.so.1 libbrotlienc.so.1 libbrotlicommon.so.1 libcurl.so.4)
  flow_carry_linked(libcurl.so.4)
  set(CPACK_GENERATOR TGZ)
  set(CPACK_PACKAGE_NAME flow)
  set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
  set(CPACK_SYSTEM_NAME ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
  set(CPACK_STRIP_FILES ON)
  set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
  include(CPack)
endfunction()
