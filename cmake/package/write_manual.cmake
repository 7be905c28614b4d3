# Part of an installation: makes the manual pages and completions by the program ${flow}, in the folder
# ${made}, and installs that for zsh below ${share}.
file(REMOVE_RECURSE ${made})
execute_process(COMMAND ${flow} manual ${made}/man1 COMMAND_ERROR_IS_FATAL ANY)
file(GLOB pages ${made}/man1/*.1)
execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
foreach(shell bash zsh fish)
  execute_process(COMMAND ${flow} completion ${shell} OUTPUT_FILE ${made}/${shell} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# Debian's zsh searches another folder for packages.
set(folder site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
  set(folder vendor-completions)
endif()
file(INSTALL ${made}/zsh DESTINATION ${CMAKE_INSTALL_PREFIX}/${share}/zsh/${folder} RENAME _flow)
