-- Quality measures of predictions. Labels count from 1, as classes do.
local flow = require "flow"

local metrics = {}

local function labels_of(values, name)
  if flow.is_tensor(values) then return values:table() end
  if type(values) == "table" then return values end
  error(name .. " takes two tensors or lists of labels, not a " .. type(values), 4)
end

local function both(predicted, expected, name)
  local p, e = labels_of(predicted, name), labels_of(expected, name)
  if #p ~= #e or #p == 0 then
    error(name .. " takes equally many predicted and expected labels, at least one: not " .. #p .. " and " .. #e, 3)
  end
  for i = 1, #p do
    if type(p[i]) == "table" or type(e[i]) == "table" then
      error(name .. " takes one label per item; for scores [n, classes] pass x:argmax(2)", 3)
    end
  end
  return p, e
end

-- The fraction of correct labels.
function metrics.accuracy(predicted, expected)
  local p, e = both(predicted, expected, "flow.metrics.accuracy")
  local right = 0
  for i = 1, #p do
    if p[i] == e[i] then right = right + 1 end
  end
  return right / #p
end

-- counts[expected][predicted], for labels 1..classes.
function metrics.confusion(predicted, expected, classes)
  if math.type(classes) ~= "integer" or classes < 1 then
    error("flow.metrics.confusion takes predicted and expected labels and the number of classes, 1 or more", 2)
  end
  local p, e = both(predicted, expected, "flow.metrics.confusion")
  local counts = {}
  for i = 1, classes do
    counts[i] = {}
    for j = 1, classes do counts[i][j] = 0 end
  end
  for i = 1, #p do
    local row = counts[e[i]]
    if not row or not row[p[i]] then
      error("flow.metrics.confusion: item " .. i .. " is label " .. tostring(row and p[i] or e[i])
        .. ", outside 1.." .. classes, 2)
    end
    row[p[i]] = row[p[i]] + 1
  end
  return counts
end

---- a confusion matrix as an image

-- Each glyph is five rows of three bits.
local glyphs = {
  ["0"] = "75557", ["1"] = "26227", ["2"] = "71747", ["3"] = "71717", ["4"] = "55711",
  ["5"] = "74717", ["6"] = "74757", ["7"] = "71111", ["8"] = "75757", ["9"] = "75717",
  T = "72222", R = "65655", U = "55557", E = "74647", P = "75744", D = "65556", I = "72227", C = "74447",
}
local cell, scale = 34, 2

local function rectangle(picture, x, y, width, height, color)
  picture[{ { y, y + height - 1 }, { x, x + width - 1 } }] = color
end

-- Draws text centered at x, y.
local function write(picture, text, x, y, color)
  local left, top = x - #text * 2 * scale, y - 5 * scale // 2
  for i = 1, #text do
    local glyph = glyphs[text:sub(i, i)]
    for row = 0, 4 do
      local bits = glyph and tonumber(glyph:sub(row + 1, row + 1)) or 0
      for column = 0, 2 do
        if bits & (4 >> column) ~= 0 then
          rectangle(picture, left + ((i - 1) * 4 + column) * scale, top + row * scale, scale, scale, color)
        end
      end
    end
  end
end

-- A [height, width, 3] tensor for flow.image.png: one row per true label, one column per predicted one. Correct counts
-- are blue, wrong ones red, and darker for a larger fraction of the row. `first` is the number shown for label 1.
function metrics.confusion_image(counts, first)
  first = first or 1
  local classes = #counts
  local side = (classes + 2) * cell
  local picture = flow.full({ side, side, 3 }, 255, "u8")
  local black, white = flow.tensor({ 40, 40, 40 }, "u8"), flow.tensor({ 255, 255, 255 }, "u8")
  write(picture, "PREDICTED", side // 2 + cell, cell // 2, black)
  for i, letter in ipairs { "T", "R", "U", "E" } do
    write(picture, letter, cell // 2, side // 2 + cell + (2 * i - 5) * 4 * scale, black)
  end
  for row = 1, classes do
    local total, at = 0, (row + 1) * cell + 1
    for _, count in ipairs(counts[row]) do total = total + count end
    write(picture, tostring(row - 1 + first), cell * 3 // 2, at + cell // 2, black)
    write(picture, tostring(row - 1 + first), at + cell // 2, cell * 3 // 2, black)
    for column = 1, classes do
      local count, left = counts[row][column], (column + 1) * cell + 1
      local share = total > 0 and (count / total) ^ 0.5 or 0
      local fade = 245 - math.floor(195 * share)
      local color = row == column and { fade, fade + 5, 250 } or { 250, fade, fade }
      rectangle(picture, left, at, cell - 1, cell - 1, flow.tensor(count == 0 and { 245, 245, 245 } or color, "u8"))
      if count > 0 then
        write(picture, tostring(count), left + cell // 2, at + cell // 2, share > 0.7 and white or black)
      end
    end
  end
  return picture
end

return metrics
