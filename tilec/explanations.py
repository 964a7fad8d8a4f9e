"""What stands behind each diagnostic code: `tilec explain CODE`. The first sentence is also its line in the list."""

from __future__ import annotations

# A code, and indented under it what to say about it. Lines that begin with # are headings for the reader of this file.
_TEXT = """
# files and the command line

no-such-file
    A file that the command names does not exist. Paths are relative to the current folder.

not-a-file
    A folder stands where a file is needed. Name the file itself: -o out/gemm.cubin, not -o out/.

unreadable-file
    A file exists but cannot be read. Look at its permissions.

not-utf8
    A file is not UTF-8 text. Kernel files are Python text, and Python text is UTF-8; save it in that
    encoding.

unwritable-output
    An output cannot be written. Outputs are made in memory and written at the end, each beside its
    destination and then renamed, so an error never leaves half a file and never touches the old one.
    Nor may an output be a file that the command reads, or two outputs be one file.

bad-response-file
    `@FILE` on the command line stands for the words in that file, quoted as in a shell. This one has a quotation that
    does not end, or names itself.

no-formatter
    `tilec fmt` leaves the layout to ruff, which is not installed here: pip install 'tilec[fmt]'.

no-language-server
    `tilec lsp` talks to editors by pygls, which is not installed here: pip install 'tilec[lsp]'.

formatting-failed
    The formatter that `tilec fmt` calls, ruff, says that it cannot format this file, often for its settings: it reads
    those of the nearest pyproject.toml or ruff.toml. Its own words are given. The file is as it was.

formatting-changes
    What ruff made of this file would not be the same kernel, so it is not written. That is a mistake of ruff or of
    tilec; `# fmt: off` keeps ruff away from the lines in question.

bad-project-name
    `tilec new NAME` makes a folder, a file and a kernel of that name, so it must be a name in each: lower-case letters,
    digits and _, and nothing that the kernel already uses.

folder-exists
    `tilec new NAME` makes a new folder and touches none that is there.

unknown-target
    There is no target file of that name. `tilec targets` lists the machines.

no-gpu
    `tilec calibrate` measures a GPU, and this machine has none, or no driver for it. `--emit DIR` writes what it would
    have run, to carry; `--results FILE` takes what `--json FILE` wrote there.

wrong-gpu
    The GPU of this machine does not run code for the target: code for sm_90a runs on compute capability 9.0 only, code
    for sm_80 on 8.x.

bad-measurements
    What `tilec calibrate` is given is not what it wrote: a file of `--json` for `--results`, a folder of `--emit` for
    `--cubins`. Both are for one target.

bad-space
    What `tilec tune --space` is to try is not there, or is nothing: a TOML file has lists of values under [constants],
    for constants of the kernel file, and under [options], for options of the compiler; `auto` looks for constants that
    say how large tiles are, how many stages a loop has or how many threads a block. docs/tuning.md has examples.

bad-journal
    `tilec tune` keeps every trial in an SQLite file. This one is no such file, cannot be written, or is of another
    kernel, target, set of options or version of tilec: what it knows says nothing about this search.

no-variant
    `tilec tune` found no variant that can be built: each was refused by the model, because a block does not fit a
    multiprocessor, or by the compiler. The commonest reasons are listed.

no-scheduler
    With `--engine dask`, trials of `tilec tune` run on the workers of a dask scheduler. No one answers at the address
    given, there are no workers, or dask is not installed. Nothing of the journal is lost.

wrong-worker
    A worker of the dask scheduler has another version of tilec, or none: its trials would be of another compiler.

bad-tuned-file
    The file given with --tuned is not what `tilec tune` writes.

tuned-for-another
    What `tilec tune` found holds for one kernel text and one target: another text may have another fastest variant,
    and its loops other schedules.

bad-target-file
    A target file breaks the rules of its format. targets/README.md explains them.

bad-environment
    An environment variable that tilec reads has a value that it cannot take.

bad-tile-ir
    A .tile file is not the text of tile IR, or breaks its rules. `tilec FILE.tl -O0` writes such files.

bad-define
    A -D option is not NAME=VALUE, or its value has another type than the constant it replaces. Values are
    integers, floats, True, False or strings: -D M=4096 -D dtype=bfloat16

unknown-define
    A -D option names no constant of the kernel file. Only names assigned at the top of the file can be
    overridden, and an override that changed nothing would be a silent mistake.

unknown-entry
    --entry names no kernel of the file. A kernel is a function decorated with @T.prim_func.

import-outside
    `from ..x import y` would leave the folder of the kernel file. What a kernel is made of lies beside it or
    in folders there, so that a kernel's folder is all that there is to know of it.

bad-import
    `from . import *` takes all names of no file. `from .file import *` does, and `from . import file` takes
    a file itself.

import-cycle
    A file imports another that is still being read, or itself. Put what both need into a third one.

bad-return
    A function under @tilelang.jit that is a kernel returns the tensors that T.empty made in it, all of them
    and nothing else: nobody would see the others, and what a parameter holds the caller has.

unknown-pass-config
    A key of pass_configs that TileLang has not. It has no effect; those that tilec follows are
    tl.enable_fast_math, tl.disable_warp_specialized and tl.disable_tma_lower.

which-entry
    The file holds several kernels, and what is asked for is of one: a trace, a stage before PTX, an
    emulation. Name it with --entry. Without one, `tilec FILE.tl` puts all of them into one cubin.

no-kernel
    The file holds no kernel, so there is nothing to compile: no function under @T.prim_func, none that makes
    such a function, and none under @tilelang.jit with a `with T.Kernel(…)` in it.

unknown-code
    `tilec explain` knows no such code. Without an argument it lists them all.

bad-problem
    The file given with --problem is no scheduling problem. `tilec schedule` reads two forms of JSON: what
    --emit problem writes, and the exchange form, an object with name, ops (each with a name, one resource or
    null, and a duration in cycles), edges ([src, dst, latency, distance] by op index) and limits (how many
    units each resource has). The message names the place.

bad-schedule
    The file given with --schedule is no schedule trace of this kernel, or its schedule does not hold. A
    schedule may come from anywhere, so it is verified against the same problem the solver would get: every
    dependence, every row of the reservation table, every ring and pool. Each broken rule is listed.

not-a-cubin
    The file is not a cubin (a 64-bit ELF file), or it is damaged.

no-manifest
    The cubin has no launch manifest. tilec puts one into every cubin it makes; other compilers do not.

bad-manifest
    The cubin's launch manifest cannot be read: it was written by another version of tilec, or damaged.

bad-inputs
    The arrays given to `tilec emulate --inputs` cannot be read or do not fit the kernel's parameters. Each
    tensor is an array under its parameter's name, with exactly its shape. bfloat16 travels as uint16 (its
    raw bits), fp8 as uint8; ml_dtypes arrays are taken as well. A scalar is a 0-d array. Pure outputs may
    be left out.

missing-input
    A tensor that the kernel reads, or a scalar, has no array in the inputs.

bad-argument
    An argument of `tilec emulate FILE.ptx` is spelled in a way that is not known. --arg takes FILE.npz:NAME,
    zeros:float32:1024x1024, a number with its type (f32:1.5, s32:-7, u64:1), null, or bytes:00ff; --grid,
    --block and --cluster take one to three positive numbers, as in 8,4,1.

wrong-launch
    The kernel cannot be launched like this: it is not in the file, takes another number of arguments, or fixes
    the size of its blocks or clusters itself.

ptx-syntax
    The text is not PTX, or PTX that the emulator's grammar (grammar/ptx.lark) does not hold.

wrong-input
    An input array has another shape or dtype than its parameter, or a scalar lies outside its type.

emulation-fault
    The emulator stopped because the PTX did something the hardware does not promise. It read data that had
    not arrived, left its memory, reused what was still in use, or could not go on. The PTX is tilec's work:
    unless the kernel itself indexes out of range, please report it.

no-reference
    A kernel does something of which only the threads decide, such as drawing a random number inside
    T.Parallel for whatever element a thread has: the numpy reference, which has no threads there, cannot say
    what comes out. Run with --no-compare, and compare what --outputs writes.

emulation-mismatch
    The PTX, run in the emulator, does not compute what the tile-level reference computes. The comparison
    allows for rounding and for sums in another order, nothing more. Please report it.

# the text

syntax
    The file is not written in the kernel language, a subset of Python with TileLang's operations.

unsupported-syntax
    A Python construct that the kernel language does not have.

too-deep
    Blocks or expressions are nested deeper than the compiler accepts.

misplaced-statement
    A statement stands where it cannot. Constants and functions stand at the top of the file; a kernel's
    statements stand inside `with T.Kernel(…) as …:`, which is the last thing in its function.

no-effect
    A statement computes a value that nothing uses. Store it, bind it to a name, or remove it.

missing-kernel
    A @T.prim_func function has no `with T.Kernel(…):` block, so it launches nothing.

missing-type
    A kernel parameter has no annotation. Write A: T.Tensor((M, K), "float16") or n: T.int32.

missing-value
    A name is declared with a type and no value. Names are bound where they are introduced.

assertion-failed
    An `assert` in the kernel file does not hold for these constants.

# names

unknown-name
    A name is used that nothing defines.

unknown-attribute
    An attribute that the object before the dot does not have.

unknown-dtype
    A name that is no dtype, or a dtype that is not supported yet.

duplicate-definition
    A name is defined twice in one place. Names are immutable here; a later definition would hide the
    earlier one by accident.

out-of-scope
    A name is used outside the block that binds it. A loop's and an `if`'s names end with it.

rebind-in-loop
    A name bound outside a loop would be changed inside it. Scalars do not carry values from one iteration
    to the next; T.alloc_var makes variables, which do: s = T.alloc_var("float32", init=0).

nothing-copied
    A tensor's name is given to another buffer. `C = tile` copies nothing, from there on `C` only is another
    name of the tile, and the tensor stays as it is. T.copy(tile, C) is what moves elements.

never-set
    A tile is read, and no statement gives it a value: a T.copy into it is missing, or the T.clear before a
    T.gemm or a sum that adds to it. What shared memory and registers hold at first is anything.

bad-target
    The left side of an assignment is nothing that can be assigned to.

# calls

unsupported-operation
    A T.* operation that tilec does not have yet, or a name that is not an operation.

needs-sm-100a
    A T.* operation of fifth-generation tensor cores or of block scaling that only sm_100a and its successors
    have, and that tilec makes no code for yet.

legacy-name
    A name of TVM, which lies below TileLang. Kernels of tilec are written in TileLang's own spelling, which
    the message names.

scheduled-here
    A name by which other compilers of the language are told which warps issue which statement, and when.
    tilec makes roles and their order itself, from the statements of T.Pipelined loops; work that is to be
    divided by hand stands under `with T.ws(…):`, ordered by barriers.

foreign-definition
    The kernel uses something that ordinary Python defines: a class, or a function with statements that the
    kernel language does not have. A file may hold such Python, but it is never executed.

evaluation-too-long
    What the file computes at compile time takes too many steps, calls itself too deeply or becomes too large.
    Compilation must end; what runs many times belongs into a loop of the kernel.

no-such-key
    A dictionary known at compile time is asked for a key that it does not have.

not-iterable
    A loop, an unpacking or a function of sequences is given something that has no items.

missing-define
    -D gives no value to something that has none: a parameter without a default of a function that makes a
    kernel or is one under @tilelang.jit, or a size that T.const names.

foreign-call
    A call of something that is neither TileLang's nor known at compile time, as of torch. At the top of a file
    such statements are left alone; a kernel, and what it uses, cannot have them.

foreign-address
    T.make_tensor is given an address that the kernel reads from a tensor. tilec checks what a launch gives a
    kernel, and orders what its tensors share, so it has to know each: a tensor is a parameter. Pass the parts
    as one tensor, with the places where they begin, or one parameter for each.

foreign-format
    A dtype is a number format that NVIDIA's GPUs do not have, such as the 8-bit floats of AMD's, whose bits
    mean other numbers. Use the format of the same width that the message names, and convert the data.

foreign-code
    The kernel calls or pastes CUDA C. tilec makes PTX itself and has no C compiler, so the same thing has to
    be written in TileLang.

raw-instruction
    The kernel names one instruction of the GPU. What it orders and waits for would be outside of what the
    compiler knows, so the operations that stand for it are to be written: T.gemm, T.copy, T.barrier_arrive.

unsupported-keyword
    A known operation is called with a keyword that is not supported yet. To ignore it might change the
    result, so it is refused; leave it out or write its default.

unknown-keyword
    A keyword that the operation does not have.

duplicate-argument
    One argument is given twice, by position and by keyword.

missing-argument
    A required argument is not given.

too-many-arguments
    More positional arguments are given than the operation takes.

wrong-argument
    An argument is of a kind that the operation does not take there.

not-callable
    Something that is not a function is called.

not-a-value
    An operation that gives no value stands where a value is needed.

not-a-buffer
    Something that is neither a tensor nor a tile is indexed.

not-a-scalar
    A whole buffer or a slice stands where one number is needed. Index one element.

# types and shapes

dtype-mismatch
    Operands have dtypes that do not go together. There is no implicit conversion between a float and a
    narrower type; write the cast, T.float32(x) or T.cast(x, "float32").

wrong-dtype
    An operation does not work on this dtype.

integer-division
    `/` between integers known only at run time. Write // for the quotient, or convert to a float.

literal-range
    A literal does not fit in the dtype it is to have.

static-arithmetic
    An expression of constants cannot be computed: a division by zero, or a result out of range.

shape-mismatch
    The shapes of an operation's operands disagree. T.gemm(A, B, C) computes C[M, N] += A[M, K] @ B[K, N];
    with transpose_A, A is stored (K, M), with transpose_B, B is stored (N, K). T.copy moves equal boxes; an
    operand written as an index takes its extents from the other side.

wrong-shape
    A shape or extent is not one: empty, not positive, not made of integers, or too large.

wrong-rank
    A buffer is indexed with more or fewer indices than it has dimensions.

wrong-scope
    An operation needs a tile in shared memory or in registers and got another kind of buffer.

wrong-variable-count
    A loop binds more or fewer variables than it has extents.

out-of-range
    An index or a box that is known at compile time leaves its buffer.

unknown-extent
    Nothing says how large a region is. Give T.copy one operand with a shape: a tile, or a slice.

runtime-shape
    A shape or extent depends on a value known only at run time. A tensor's shape may be made of integer parameters and
    of sizes that T.dynamic names; a tile's, and the extent of a copy, must be numbers.

runtime-grid
    The grid of T.Kernel depends on a value that the host cannot compute at launch. It may have integers and integer
    parameters in it, with + - * // % T.min and T.max.

runtime-argument
    An argument that must be known at compile time is not.

# loops and threads

not-a-loop
    A `for` runs over something that is no loop of the kernel language.

loop-layout
    The `loop_layout` of T.Parallel does not say which thread runs each iteration. It has one input per loop
    of the nest, with the loop's extent, and stands at the outermost loop. Every iteration has a thread and a
    number there that no other has, and both advance in regular steps along the dimensions.

hint-not-used
    Something asks for a way of doing things that tilec does not take, and that changes no result: a layout
    of a shared tile, a budget of registers, a keyword of T.copy or T.gemm, an asynchronous stage of a pipeline
    that copies nothing from a tensor to a shared tile. Also T.Parallel with
    `prefer_async` where the nest does not fill a whole shared tile with consecutive elements of a tensor of
    the same dtype. -Wno-hint-not-used silences it.

endless-loop
    The condition of a `while` is a constant, and no `break` leaves the loop. Names are immutable, so a
    condition that is to change reads an element of a buffer that the loop writes.

loop-in-parallel
    A loop stands inside T.Parallel, whose body each thread runs for its own elements. Give T.Parallel one
    more extent, or take the loop outside.

atomic-outside-parallel
    An atomic of one element stands outside T.Parallel, where every thread of the block would do it once. Write
    `for i in T.Parallel(1):` around it, or give it a whole tile.

tile-op-in-parallel
    An operation on whole tiles stands inside T.Parallel. All threads do it together; take it out.

fragment-index
    A fragment lives in registers, spread over the threads. Outside T.Parallel no thread has all of it, so that none of
    its elements can be named; and a nest that sets a fragment in several statements cannot also use elements of it that
    other threads set. Put the results in another fragment, or use T.alloc_shared.

reducer-update
    What T.alloc_reducer made can only be added to, by its own operator, until T.finalize_reducer: each thread has a
    part of it, so that neither its value nor a copy into it means anything. Write T.reducer_update(acc[i], value),
    or acc[i] += value for a sum and acc[i] = T.max(acc[i], value) for a maximum.

reducer-order
    A reduction begins with T.reducer_init (or T.fill), goes on with additions, and ends with T.finalize_reducer, in
    this order in the text; then its result can be read, and another one may begin.

packed-row
    Two elements of four bits share a byte of a tensor or shared tile, and each row begins with a byte of its own. So
    the last dimension has an even size, known when the kernel is compiled.

packed-store
    Two elements of four bits share a byte, which one thread has to write as a whole. A nest of T.Parallel that sets
    such elements goes through the rows with one of its variables, over an even number of them, and sets every one:
    `Q[i, j] = …`, without an `if` around it. T.if_then_else chooses between values; an int8 tile has room for each.

layout-map
    The map of a T.Layout gives each element of a shared tile a place of its own, counted in elements from 0 on. Gaps
    are allowed, as the padding of `lambda i, j: i * 72 + j`; two elements in one place are not. It may use + - * // %,
    shifts, bit operations, T.min, T.max and conditional expressions of the indices.

layout-conflict
    T.annotate_layout gives a shared tile a layout in which something that uses the tile cannot reach it, as wgmma,
    which takes swizzled rows only. tilelang.layout.make_swizzled_layout gives one that everything can.

generator-not-set
    T.rng_rand and T.rng_rand_float draw from the generator that T.rng_init gives to each thread, and none
    stands before them. Write T.rng_init(seed) once, before loops and conditions, and draw after it.

thread-dependent
    Threads may store different things, and an `if` may hold for some of them only: T.get_thread_binding()
    names the thread, and an array made by T.alloc_local is its own. But what the block does together, all of
    its threads do: operations on tiles, T.Parallel, where they take place, and `while`. These can depend on
    the block and on loops, not on the thread.

bad-cluster
    A cluster of blocks has one to eight blocks, and the grid is made of whole clusters along each of its
    dimensions: else some blocks of the last one would be missing. Where the grid is known only at launch,
    it is looked at there.

bad-consumers
    --consumers N computes with N warpgroups of 128 threads, whatever threads= says. That is possible where
    tilec shares out all of the work: not where the kernel names its threads, gives a fragment a layout, or
    counts threads at a barrier. Of a product each warpgroup has 64 rows or a multiple of them; where there
    are more warpgroups than that, those with the same rows have 64 columns each, or a multiple of them.

bad-subtile
    A tile is cut by T.annotate_subtile or --subtile N into parts of equal size along one dimension, and with
    it every tile that has the same index: those that are copied from or to it, computed with it element by
    element, or multiplied along it. That works for T.copy, T.gemm, T.fill, the T.reduce family and nests of
    T.Parallel that use whole tiles, each by the loop's own index, and not where a layout or the stages of a
    loop are given by hand.

bad-rasterisation
    The order in which blocks go over a grid is `auto`, `none` (x counts fastest, as CUDA numbers them), or
    a number: in panels of as many rows of blocks, or of as many columns, whichever touches less memory.

needs-sm-90
    Clusters of blocks, and launches that depend on the one before them, came with Hopper: sm_80 has
    neither. T.sync_grid works everywhere.

bad-threads
    A block has between 32 and 1024 threads, in whole warps.

manual-schedule
    The lists that describe a schedule by hand do not fit the loop's statements. `stage` and `order` come
    together and have one entry per scheduled statement: copies, fills, products, reductions, nests, stores,
    loops and branches, in the order of the text. No entry is negative, and no place in `order` is there
    twice. A bind like base = ko * BK takes no entry: it is evaluated anew at each use. A bind that reads
    what the loop writes does take one.

bind-stage
    A bind that reads a buffer which the loop writes has its value at one time only, and no storage that
    could have versions. So everything that uses it stands in its stage, after it. To load once and use the
    value in later stages, store it to a shared tile, as in s[0] = A_shared[0]: tiles have versions.

schedule-depth
    What num_stages asks for beside `stage` and `order` leaves a tile fewer versions than the schedule keeps in
    use: a version would be filled again before its last reader is done. Without it there are max(stage) + 1.

async-impossible
    A statement is to be asynchronous that no mechanism of the machine can do on its own. Asynchronous are
    copies from a tensor to a whole shared tile of the same dtype, with rows aligned to 4 bytes.

depth-override
    Given beside `stage` and `order`, num_stages sets the number of versions that each tile of the loop has, in
    place of max(stage) + 1. It is meant for schedules alone or for solved pipelines; together they are
    accepted, and the warning says what came of it.

legacy-schedule
    The lists have entries for binds too, as they had in older programs. A bind is evaluated anew at each
    use, with the iteration of the statement that uses it, so the entry means nothing. The help shows the
    lists without it.

schedule-not-used
    A schedule is given by hand, but with these options all loops run serially.

sync-incomplete
    `sync` has one list for each scheduled statement: the statements further up for whose work it waits, in the
    same iteration, as if it read what they write. What a statement really reads it waits for too, listed or
    not: a wait that is needed is never left out. The help shows the whole list.

unwaited-copy
    T.async_copy only begins a copy. TileLang reads what lies there if nothing waits for it; tilec waits before
    whatever touches the tile, so the result is right, but the wait stands where nobody has written one. Say
    where to wait with T.ptx_wait_group(0), or use T.copy.

copy-not-asynchronous
    T.async_copy is carried out by the threads themselves, through registers, because no asynchronous copy can
    do it: those fill a shared tile of the tensor's dtype, or a part of one, with rows aligned to 4 bytes.

part-of-a-block
    T.sync_threads is a barrier for all threads of the block. Those of a part of it would have to be told apart
    from the barriers that tilec places for its own roles.

group-impossible
    The statements that `group` puts together fill one ring of versions: their tiles are waited for and freed
    together, and their copies by cp.async are one commit group. So each of them fills a tile as a whole, all
    in one stage and by the same warps, and none of the tiles is read before the last of them is filled.

unknown-annotation
    An annotation of a loop that nothing here reads. It is ignored.

schedule-order
    The `stage` and `order` of T.Pipelined put a statement before one that it depends on. The message names
    both and the tile between them.

strategy-impossible
    --pipeline-strategy asks for a form that this kernel or this machine does not allow.

unsupported-operand
    T.gemm's operand stands where the instruction cannot take it from yet.

unsupported-shape
    The tile cannot be divided among the threads in the pieces that the instruction needs.

unsupported-type
    The machine's tensor cores do not take this combination of dtypes.

level-without-code
    -O0 ends with tile IR and -O1 with its alias analysis, both for looking at; a schedule, PTX or a cubin need -O2
    or -O3.

# work divided by hand

barrier-count
    T.alloc_barrier was given a count of 0 or less. A phase of the barrier completes with as many arrivals
    as its count says: write how many threads arrive, 1 where one thread does it for the others.

team-apart
    Warpgroups that `with T.ws(…):` names together share the tiles of its statements out among themselves.
    For that they must be neighbours. Name each once.

divided-fragment
    A fragment is used in work of different warpgroups. It lies in the registers of the threads that work on
    it, which no other thread can read; a tile made by T.alloc_shared can be handed over, with a barrier.

divided-work
    An operation on tiles stands where warpgroups come that run other statements alone. It would have to be
    shared out among all of them, in the middle of what each does at its own pace. Let one of them do it, or
    do it before the work is divided.

too-many-registers
    The roles of a block ask for more registers than a multiprocessor has. Who asks for more waits until
    others have given up as many, which never happens then. A warpgroup without T.set_max_nreg keeps what it
    had at first: the registers shared out evenly.

never-arrived
    A barrier is waited for, and no statement of the kernel arrives at it. T.tma_copy alone is no arrival:
    the phase of its barrier completes with the bytes and with the arrivals that T.alloc_barrier counts.

barrier-deadlock
    With the trip counts that are known, a role waits for a phase of a barrier that never completes, or that
    has been passed by. Mostly the count of the barrier is not the number of threads that arrive, a parity
    does not change from trip to trip, or a release is missing. The notes say how far each barrier has come.

barrier-bytes
    The bytes that a kernel announces to a barrier by T.mbarrier_expect_tx are not those that T.tma_copy
    brings. Where a kernel announces some, its copies do not announce their own.

pipeline-stages
    A pipeline holds at least one stage. With one, filling and using take turns; with two or more, a producer
    fills one stage while consumers use another.

pipeline-impossible
    `tile.pipeline(stage=n)` and `T.annotate_pipeline({tile: n})` ask for n versions of a shared tile, so that
    the loads of later trips are under way while one is used. So a loop must load the whole tile in each trip,
    nothing outside the loop may use it, the loop must not be left in the middle, and all tiles of a loop have
    as many stages. What a product reads into registers it reads a step ahead by itself.

pipeline-payload
    What one stage of a pipeline holds are shared tiles, or for T.OutputTilePipeline sums in tensor memory, each
    once, which nothing has used before: the pipeline makes as many versions of them as it has stages. A tuple of
    tiles gives them their own names in a stage, a dictionary other ones.

pipeline-tile
    A tile that a pipeline holds has one version for each stage. It is reached by a stage that has been
    acquired, as `tiles.A_shared`, where the side that acquired it is the only one that may touch it.

pipeline-role
    A pipeline hands tiles from roles that fill them to roles that take them. Each acquires under its
    `with T.ws(…):`, all threads of it together, and no warpgroup is on both sides, or half in a role.

pipeline-counts
    Each role of a pipeline acquires every stage in its turn, so all of them acquire equally many. A consumer
    that acquires more waits for ever; one that acquires fewer leaves copies under way into a block that ends.

pipeline-order
    A role that holds a stage while it waits for one of another pipeline must not wait, over other roles, for
    itself: the orders in which stages are acquired inside each other form no cycle. And whoever holds all
    stages of a pipeline waits for another one for ever.

pipeline-drain
    A block of a cluster must not end while others may still signal its barriers or use its stages: behind the
    last stage that it fills its producer waits, by `producer.drain()`, until all of them are given back.

stage-not-released
    A stage that is acquired is released on every path, exactly once: in both branches of an `if`, in front of
    a `break`, in the trip of the loop that acquired it. Else the other side waits for it for ever. The labels
    show where it was acquired, and the path that ends with it.

stage-released-twice
    The second release of a stage would be taken for that of the next one, which is still in use. A stage that
    a `with` acquires is released by its end.

stage-after-release
    Behind its release a stage is the other side's, which may be filling it again. That goes for its tiles and
    its barrier by whatever names.

stage-in-loop
    What a loop releases it acquires too, in the same trip: else the first trip would release for all others,
    and a loop without trips for none.

stage-role
    All threads of the role that acquires a stage arrive when it is released, so all of them come to the
    release. Under a `with T.ws(…):` inside, some of them would not.

stage-escapes
    A stage is known by the one name that it was acquired by, so that every path can be seen to release it. It
    can be given to a macro, whose statements stand in place of the call, but not to a second name, a tuple, a
    list or a dictionary. Its tiles can: `A, B = stage`.

stage-side
    A producer fills stages, and its copies may still be under way while it holds them; a consumer takes what
    it finds, and nobody waits for what it copies into a stage.

deadlock
    In `tilec emulate`, the reference found roles that wait for barriers at which nobody arrives any more.

# resources and schedules

shared-memory-overflow
    The tiles of one block need more shared memory than the machine has for a block. Each version of a
    pipelined tile counts: depth times its size. Use smaller tiles, a smaller num_stages, or fewer stages.

unschedulable
    No schedule exists at any initiation interval, or none within what was asked for. The message names the
    slot, pool or ceiling that binds, and the statements involved.

schedule-not-proven
    The solver stopped at its effort limit with a schedule that holds but is not proven optimal. The code is
    correct. The limit is counted in deterministic steps, so a rebuild gives the same schedule.

# lints, what the assembler says first: --lint=error makes errors of them

register-spill
    The assembler ran out of registers and keeps some values in local memory, which is slow. A smaller tile,
    or more threads to share the accumulator, is the usual remedy.

wgmma-serialised
    The assembler waits after every wgmma instruction instead of keeping them in flight, which costs up to
    three times the time (its messages C7510 to C7520). It does so when other instructions touch the
    accumulator or operand registers of a group in flight, or when a group crosses a divergent branch or a
    call.

injected-wait
    The assembler put a wait or a fence of its own between wgmma instructions (C7517, C7519), because
    registers of a group in flight were used without one. The result is right, the pipeline is not what was
    planned.

setmaxnreg-ignored
    The assembler dropped the instruction that moves registers between warp roles (C7504 to C7508), so a
    warp-specialised kernel runs with the registers it was launched with, and may spill.

bank-conflict
    Two tiles of shared memory are reached at the same time, each in a way that its layout cannot serve without bank
    conflicts: columns, or rows that no swizzle fits. Each layout is the best for its own tile; nothing chooses them
    together. Index one of them along its rows, or make its rows a multiple of 32 bytes.

layout-conversion
    Two statements need one fragment spread over the threads in two different ways: accumulators of T.gemm have the
    tensor core's layout, elementwise nests carry layouts from one fragment to the next, and a nest may want elements
    that other threads have. Then the fragment is written to shared memory and read again in the other layout, in front
    of the statement that the warning names, or behind it. The time is often well spent; where it is not, give
    two products the same policy=, reduce along the rows, or work on a tile made by T.alloc_shared.

barriers-exhausted
    More named barriers are used than the machine has (16), or an iteration of a pipelined loop stops at a barrier more
    often than may be carried to the next (3). Each tile that threads write and others read is such a stop. Tiles that
    are filled next to one another, and read after that, share one; fragments that stay with their threads need none.

address-latency
    Index arithmetic, such as a division by a number that is no power of two, takes more cycles than the work on what
    it points to. It makes the compute side of a loop look long, so that fewer stages seem enough to hide the loads.

tensor-memory-overflow
    The tiles that the kernel makes by T.alloc_tmem need more columns of tensor memory than an SM has. Make them
    smaller, or use one for several sums, one after the other.

tensor-memory-full
    The accumulators of a kernel need more columns of tensor memory than an SM has (512): one for each column of the
    tile, whatever its type, and again for each 128 rows. What finds no place stays in registers, and its products go
    by mma.sync.

assembler-warning
    A warning of the assembler that tilec has no name for. The note has its text.
"""


def _parse(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    code = ""
    for line in text.splitlines():
        if line.startswith("    "):
            found[code].append(line.strip())
        elif line and not line.startswith("#"):
            code = line
            assert code not in found, f"{code} is explained twice"
            found[code] = []
    return {code: "\n".join(lines) for code, lines in found.items()}


EXPLANATIONS = _parse(_TEXT)
