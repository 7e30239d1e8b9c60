// Package sharing puts what the subtasks of a process capture into few files.
//
// Subtasks form groups. Plan decides, for one group and one checkpoint, which
// file a subtask writes to and when that file is sealed; it is a pure state
// machine. Group carries its decisions out. Stream is the queue of what one
// subtask captured and nobody has packed yet; File is one shared file, with the
// goroutine that packs streams into blocks and writes them to the store. Budget
// counts the bytes that all this holds.
//
// # Locks
//
// They are taken in this order, and none of them is held during I/O:
//
//	File.pack    the encoder, and the slab of each stream that is being packed
//	Stream.mu    the queue of one stream
//	Group.mu     the plans of one group
//	File.mu      what a file has to do next
//	Hub.mu       the list of files
//
// A caller takes Stream.mu, and for its first bytes Group.mu; never File.pack.
package sharing
