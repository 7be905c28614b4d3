local M = { count = 0 }
function M.next() M.count = M.count + 1; return M.count end
print("plain loads", ...)
return M
