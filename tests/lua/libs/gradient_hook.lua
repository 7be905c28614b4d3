-- flow.gradient_hook: is called for each complete gradient, and at the end of the backward pass.
local function leaf(...) return flow.tensor({ ... }, "f32"):requires_grad_() end
local a, b, c = leaf(1, 2), leaf(3, 4), leaf(5, 6)
local function told(f)
  local said = {}
  local hook = flow.gradient_hook({ a, b, c }, function(i)
    local x = ({ a, b, c })[i]
    said[#said + 1] = i .. "=" .. (x.grad and ("%g"):format(x.grad:sum()) or "nil")
  end, function() said[#said + 1] = "end" end, function(order) said[#said + 1] = "[" .. table.concat(order) .. "]" end)
  a.grad, b.grad, c.grad = nil, nil, nil
  f()
  hook:remove()
  a:sum():backward()
  return table.concat(said, " ")
end
print(told(function() ((a * b) * c):sum():backward() end))  -- expect: [312] 3=11 1=39 2=17 end
print(told(function() (a * 2 + b + a * 3):sum():backward() end))  -- expect: [21] 2=2 1=10 end
print(told(function() (a * b):sum():backward(); (a * c):sum():backward() end))  -- expect: [12] 1=7 2=3 end [13] 1=18 3=3 end
print(told(function() leaf(1):sum():backward() end))  -- expect: []
print(told(function() a:backward(flow.ones(2)) end))  -- expect: [1] 1=2 end
-- A function called by backward may add to any gradient, so all of them wait for it.
print(told(function() (flow.checkpoint(function(x) return x * b end, a) * c):sum():backward() end))  -- expect: [31] 3=11 1=39 2=17 end
print(told(function() (flow.checkpoint(function(x) return x * b end, a * 2) + b):sum():backward() end))  -- expect: [21] 2=8 1=14 end
-- A gradient that is never computed is reported at the end.
local half = flow.custom_gradient(function(x, y) return x + y end, function(gradient) return gradient, nil end)
print(told(function() half(a, b * 2):sum():backward() end))  -- expect: [12] 1=2 2=nil end
print(pcall(function() flow.gradient_hook({ flow.ones(2) }, print, print) end))  -- expect: false	gradient_hook.lua:27: flow.gradient_hook watches tensors that require a gradient, and tensor 1 of the list does not: x:requires_grad_()
print(pcall(function() flow.gradient_hook { a } end))  -- expect: false	gradient_hook.lua:28: flow.gradient_hook takes a list of tensors, ready(i) and finished()

-- A hook removes another one, which is not called again; one that is added during a backward may remove itself.
for _, moment in ipairs { "started", "ready", "finished" } do
  local heard, hooks = {}, {}
  local function make(name)
    local function note(what)
      return function()
        heard[#heard + 1] = name .. " " .. what
        if what ~= moment then return end
        for other, hook in pairs(hooks) do
          if other ~= name then hook:remove() end
        end
        for i = 1, 20 do flow.gradient_hook({ c }, print, print):remove() end
      end
    end
    hooks[name] = flow.gradient_hook({ a }, note "ready", note "finished", note "started")
  end
  make("one")
  make("two")
  a:sum():backward()
  print(table.concat(heard, ", "))
  hooks.one:remove()
  -- expect: one started, one ready, one finished
  -- expect: one started, two started, one ready, one finished
  -- expect: one started, two started, one ready, two ready, one finished
end
local late
local early = flow.gradient_hook({ a, b }, function(i)
  if i == 2 then return end
  late = flow.gradient_hook({ b, b }, function() late:remove() collectgarbage() print("late") end, print)
end, function() end)
local product = a * b
product:sum():backward()  -- expect: late
early:remove()
