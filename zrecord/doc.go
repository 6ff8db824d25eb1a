// Package zrecord carries tar streams in records, compressed with zstd where the link is slow.
//
//	tar stream ──► Writer ──► records of data, plain or compressed ──► link ──► Reader ──► tar stream
//
// The writer measures how fast the link takes its records. While the link is slower than [SlowLink], it compresses.
// Each record is compressed alone, so a record never expands to more than one block, whatever a hostile peer sends.
//
// The package imports protocol only, and does no I/O except on the streams that it gets.
package zrecord
