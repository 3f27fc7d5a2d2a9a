// Package extents divides large TFRecord files into extents, which a plan then divides as it divides a list of files.
//
// It promises: the changed dataset has the elements of the registered one. The elements have the same order, unless
// several files are interleaved or listed in random order. If a file gets shorter or its records get other lengths, a
// run fails at a checksum or at the count of an extent. Records that are appended later are not read.
//
// index.go reads the headers of records, of all or of a sample, and seeks over the data. keep.go keeps indexes in the
// user's directory for caches. source.go finds the steps that open files. reader.go finds the function that opens a file,
// and writes the function that opens an extent. taken.go finds the take and skip steps that decide which records are
// used; they leave the graph. rows.go lists the extents, and continues to read indexes when a caller cannot wait.
// replace.go replaces a list of files by a list of extents. Each extent has a name, an offset and a number of records.
//
// Extents have the same number of records, a power of two. A file's end shortens its last extent. The first extents of
// the next file are shorter too, so that later ones end at multiples of that number, counted from the first file. So
// blocks of a batch size can be counted in blocks of extents.
//
// Trainers call the package before they register a dataset, so the plan stays a function of the graph. If others must get
// the same graph, it must not depend on the speed of a disk. Such callers give a context without a deadline. Do not read
// records' data here, and do not divide compressed files.
package extents
