// Sharedfs shows a directory as a cluster's shared file system shows it: no chown to other ids, no locks, no
// extended attributes, a slow fsync, and what other hosts change is seen a moment later, as on NFS and Lustre.
//
//	sharedfs [-fsync 10ms] [-locks] EXPORT MOUNTPOINT
//
// It serves one host, as that host's NFS client would, until it is unmounted or killed.  A file .full-UID in
// EXPORT puts that user over quota (EDQUOT), a file .readonly-UID lets the user change nothing (EROFS).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

var (
	fsync  = flag.Duration("fsync", 10*time.Millisecond, "what an fsync takes")
	locks  = flag.Bool("locks", false, "let files be locked, by all hosts together")
	cached = time.Second // for how long what other hosts changed may stay unseen
)

// A file or directory of the export, with the permissions that the kernel checks (default_permissions).
type node struct {
	fs.LoopbackNode
}

// refuses says why the caller may not add anything, or OK.
func (n *node) refuses(ctx context.Context) syscall.Errno {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return fs.OK
	}
	for name, errno := range map[string]syscall.Errno{"full": syscall.EDQUOT, "readonly": syscall.EROFS} {
		mark := filepath.Join(n.RootData.Path, fmt.Sprintf(".%s-%d", name, caller.Uid))
		if syscall.Access(mark, 0) == nil {
			return errno
		}
	}
	return fs.OK
}

// onlyReadonly is refuses for what takes no space: a user over quota may still rename and remove.
func (n *node) onlyReadonly(ctx context.Context) syscall.Errno {
	if errno := n.refuses(ctx); errno == syscall.EROFS {
		return errno
	}
	return fs.OK
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		if errno := n.onlyReadonly(ctx); errno != fs.OK {
			return nil, 0, errno
		}
	}
	handle, open, errno := n.LoopbackNode.Open(ctx, flags)
	return handle, open | fuse.FOPEN_KEEP_CACHE, errno // the kernel drops it when size or time change
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.refuses(ctx); errno != fs.OK {
		return nil, nil, 0, errno
	}
	return n.LoopbackNode.Create(ctx, name, flags, mode, out)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.refuses(ctx); errno != fs.OK {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.refuses(ctx); errno != fs.OK {
		return nil, errno
	}
	return n.LoopbackNode.Symlink(ctx, target, name, out)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.onlyReadonly(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	if errno := n.onlyReadonly(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.onlyReadonly(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

func (n *node) Write(ctx context.Context, f fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := n.refuses(ctx); errno != fs.OK {
		return 0, errno
	}
	return f.(fs.FileWriter).Write(ctx, data, off)
}

func (n *node) Allocate(ctx context.Context, f fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if errno := n.refuses(ctx); errno != fs.OK {
		return errno
	}
	return f.(fs.FileAllocater).Allocate(ctx, off, size, mode)
}

func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	var now fuse.AttrOut
	if errno := n.Getattr(ctx, nil, &now); errno != fs.OK {
		return errno
	}
	if uid, ok := in.GetUID(); ok && uid != now.Uid {
		return syscall.EPERM
	}
	if gid, ok := in.GetGID(); ok && gid != now.Gid {
		return syscall.EPERM
	}
	if errno := n.onlyReadonly(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

func (n *node) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	time.Sleep(*fsync)
	if f == nil { // a directory
		return fs.OK
	}
	return f.(fs.FileFsyncer).Fsync(ctx, flags)
}

func (n *node) Getlk(ctx context.Context, f fs.FileHandle, owner uint64, lk *fuse.FileLock, flags uint32, out *fuse.FileLock) syscall.Errno {
	if !*locks {
		return syscall.ENOSYS
	}
	return f.(fs.FileGetlker).Getlk(ctx, owner, lk, flags, out)
}

func (n *node) Setlk(ctx context.Context, f fs.FileHandle, owner uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	if !*locks {
		return syscall.ENOSYS
	}
	return f.(fs.FileSetlker).Setlk(ctx, owner, lk, flags)
}

func (n *node) Setlkw(ctx context.Context, f fs.FileHandle, owner uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	if !*locks {
		return syscall.ENOSYS
	}
	return f.(fs.FileSetlkwer).Setlkw(ctx, owner, lk, flags)
}

func main() {
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("usage: sharedfs [-fsync DURATION] [-locks] EXPORT MOUNTPOINT")
	}
	export, target := flag.Arg(0), flag.Arg(1)
	syscall.Umask(0)
	_ = syscall.Unmount(target, syscall.MNT_DETACH) // what a server that died has left
	var status syscall.Stat_t
	if err := syscall.Stat(export, &status); err != nil {
		log.Fatalf("cannot use %s: %v", export, err)
	}
	root := &fs.LoopbackRoot{Path: export, Dev: uint64(status.Dev)}
	root.NewNode = func(data *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &node{fs.LoopbackNode{RootData: data}}
	}
	root.RootNode = root.NewNode(root, nil, "", &status)
	server, err := fs.Mount(target, root.RootNode, &fs.Options{
		EntryTimeout:    &cached,
		AttrTimeout:     &cached,
		NegativeTimeout: &cached,
		MountOptions: fuse.MountOptions{
			AllowOther:        true,
			DirectMountStrict: true,
			DirectMountFlags:  syscall.MS_NOSUID | syscall.MS_NODEV,
			EnableLocks:       true,
			DisableXAttrs:     true,
			FsName:            "shared:/home",
			Name:              "sharedfs",
			MaxWrite:          1 << 20,
			Options:           []string{"default_permissions"},
		},
	})
	if err != nil {
		log.Fatalf("cannot mount %s: %v", target, err)
	}
	server.Wait()
}
