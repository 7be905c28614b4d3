# Part of a Debian package: compresses the project's changes, and makes Debian's own list of them, in
# the folder ${made}. SOURCE_DATE_EPOCH sets the time of a reproducible build.
file(REMOVE_RECURSE ${made})
string(TIMESTAMP time "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${made}/changelog.Debian
"flow (${version}) unstable; urgency=medium

  * The changes of flow are in changelog.gz.

 -- ${maintainer}  ${time}
")
file(MAKE_DIRECTORY ${made})
file(COPY_FILE ${changes} ${made}/changelog)
execute_process(COMMAND gzip -9n ${made}/changelog ${made}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
