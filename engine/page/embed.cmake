# Writes OUT, a C++ file with the function page_assets() that returns the files in ROOT. NAME=report: the function
# report_assets() of engine/report. cmake -DROOT=… -DOUT=… -DNAME=page -P embed.cmake
file(GLOB files RELATIVE ${ROOT} ${ROOT}/*)
list(SORT files)
set(text "// The files of engine/${NAME}/assets, as engine/page/embed.cmake found them.\n#include \"engine/${NAME}/${NAME}_assets.hpp\"\n\nnamespace flow {\n\n")
set(entries "")
set(number 0)
foreach(file ${files})
  file(READ ${ROOT}/${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND text "static const unsigned char ${NAME}_asset_${number}[] = {${bytes}0};\n")
  string(APPEND entries
         "      {\"${file}\", {reinterpret_cast<const char*>(${NAME}_asset_${number}), sizeof ${NAME}_asset_${number} - 1}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND text "\nconst std::vector<PageAsset>& ${NAME}_assets() {\n  static const std::vector<PageAsset> assets = {\n${entries}  };\n  return assets;\n}\n\n}  // namespace flow\n")
file(WRITE ${OUT}.new "${text}")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
