-- The ledger gathers the jobs that end in a call, so that they are written and
-- erased in few commands, in chunks that unpack can take: kept (id, outcome line)
-- with ends (until when, id), and gone, of which nothing stays.
local kept, ends, gone = {}, {}, {}
