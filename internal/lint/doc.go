// Package lint holds tests about the tree itself: which package may import
// which (docs/architecture.md draws it), that exported names are documented,
// that no test sleeps, and that nothing unfinished is left in a file.
package lint
