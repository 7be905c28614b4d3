-- Waiting for a person. The task gives its slot back while it waits, for days if need be, also over restarts.
--   flow run examples/approval.lua &
--   flow signal last approved '{"by":"ada"}'
local flow = require "flow"

local draft = flow.task("draft", function(ctx) return "release notes, draft" end)

local review = flow.task("review", function(ctx, text)
  ctx:step("announce", function()
    ctx:log("please look at: %s", text)       -- a step: done once, however often the task is started again
    return true
  end)
  local answer, problem = ctx:wait("approved", { timeout = "2d" })
  if problem == "timeout" then error("nobody approved within two days") end
  return answer
end)

local publish = flow.task("publish", function(ctx, text, answer)
  local by = type(answer) == "table" and answer.by or "somebody"
  return text .. ", approved by " .. by
end)

return flow.pipeline("approval", {}, function()
  local text = draft()
  return publish(text, review(text))
end)
