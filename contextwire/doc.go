// Package contextwire owns every byte that crosses a process boundary: the wire
// part of a module.Context, requests, reply frames, control messages and
// catalogue records, in msgpack and in JSON, with the limits that hostile bytes
// meet first. It does not own subjects, connections, keys or what a message
// leads to; those belong to bus and executor.
//
// # Values
//
// Both codecs describe the JSON data model: nil, bool, int64, uint64 (only above
// the range of int64), float64, string, []any and map[string]any. The JSON and
// the msgpack form of one value decode to deeply equal Go values. A number is a
// float64 if and only if it is written as one: with a fraction or an exponent in
// JSON, as a float in msgpack. So an integral float64 is written 1.0, and an
// integer literal that does not fit 64 bits is refused instead of rounded.
//
// Refused with BUS_BAD_MESSAGE: duplicate keys, keys that are not strings, NaN
// and infinities, msgpack extension types, text that is not UTF-8 (an unpaired
// surrogate escape is not), bytes after the value, and whatever exceeds
// [Limits]. The details name the limit and never quote data.
//
// # Reading a message
//
// A request is read in two steps, so that the cheap checks come first:
// [ParseHead] looks at headers only, [Head.DecodeBody] at the body. Frames are
// read by [DecodeFrame], control messages by the DecodeX function of their type.
//
// # Concurrency
//
// All functions may be called from any number of goroutines; nothing is shared.
// Decoded values belong to the caller and do not alias the bytes they came from.
package contextwire
