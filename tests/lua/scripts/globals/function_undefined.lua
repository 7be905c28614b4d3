-- mode: load
function helper() end  -- expect error: setting the undefined global `helper`
