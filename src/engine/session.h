// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/quiescence.h"
#include "base/snapshot.h"
#include "base/thread_annotations.h"
#include "engine/caller_life.h"
#include "engine/engine.h"
#include "engine/link.h"
#include "engine/link_table.h"
#include "engine/service.h"
#include "engine/unique_number.h"

namespace mooncake {

/// How a segment's name becomes a descriptor: asks the directory for the address, then the peer itself. Thread-safe.
class DescriptorSource {
public:
    struct Found {
        SegmentDescriptor descriptor;
        std::string rpc_address;
    };

    virtual ~DescriptorSource() = default;
    virtual Result<Found> fetch(const std::string& name, uint32_t buffers_max, Deadline deadline) = 0;
};

struct SessionPolicy {
    Duration connect_timeout = 5s;
    bool cache_descriptors = true;  // false: ask the peer before every transfer whether it is still the same
};

/// One remote segment by name. Connects when first used, once for all callers that wait; remembers for a moment that it could
/// not; connects anew after the link broke. Thread-safe.
class Session {
public:
    Session(std::string name, DescriptorSource& source, LinkTable& links, SessionPolicy policy)
        : name_(std::move(name)), source_(source), links_(links), policy_(policy) {}

    const std::string& name() const noexcept { return name_; }
    /// Names this session's work among that of others.
    Service::Key key() const noexcept { return reinterpret_cast<Service::Key>(this); }

    /// The current link if it meets the need, or another one. Waits for whoever is connecting already, at most until the deadline.
    Result<std::shared_ptr<Link>> link(Deadline deadline, const Need& need = {});
    /// The same for bytes, which have addresses: only to the life of the peer that those belong to. `life` none: to the one that callers
    /// have dealt with so far, which is then filled in. kStale when the peer has another one now: who asks again with none is believed to
    /// know that.
    Result<std::shared_ptr<Link>> link_to(Incarnation& life, Deadline deadline, const Need& need = {});
    /// The link of link_to() where there is nothing to ask or to wait for, otherwise null. Takes no lock and counts nothing, so that
    /// threads that transfer to one peer share no cache line that they write: the link is good for as long as a section() lasts that
    /// began before.
    Link* borrow(Incarnation& life) noexcept;
    [[nodiscard]] Quiescence::Section section() noexcept { return links_.users().enter(); }
    /// The same without waiting for anybody: null when it would have to.
    Result<std::shared_ptr<Link>> link_at_hand(Incarnation& life, const Need& need = {});
    /// link_to() for who was told this life by somebody else, perhaps before we have heard of it: a link to another one is not believed
    /// before its peer has said that it is still there.
    Result<std::shared_ptr<Link>> meet(Incarnation life, Deadline deadline);
    /// kStale when it is known by now, without asking anybody, that the peer has another life. Takes no lock when it has not.
    Result<> check_known(Incarnation life);
    /// The same as link() for callers that are about to learn new addresses: whoever lives there now is the one to deal with.
    Result<std::shared_ptr<Link>> open(Deadline deadline);
    /// The life that callers deal with; none if they have not yet.
    Incarnation life();

    /// What the calling thread has dealt with here: it is told of each restart, once, by a call of its own, whoever else was.
    const std::shared_ptr<CallerLife>& caller() const { return caller_.of_this_thread(); }
    /// The life for link_to() that the addresses of a new call belong to. Takes no lock.
    Incarnation life_of(CallerLife& caller) const noexcept;
    /// The same for a call that goes on after the thread has left.
    Addresses addresses() const { return {.life = life_of(*caller()), .caller = caller()}; }
    /// The calling thread was given addresses of this life: it deals with that one from now on.
    void asked(Incarnation life);

    /// Whether there is a link that works. Asks nobody.
    bool connected();
    /// Tells that something failed on a link: if that broke, the next link() connects anew.
    void report_failure(const std::shared_ptr<Link>& link);
    /// Whether the peer behind a link still lives and is the one we connected to; forgets the link if not. Asks the peer.
    bool confirm(const std::shared_ptr<Link>& link, Deadline deadline);
    /// Asks the peer behind a link what memory it has now. False: it did not answer, or another one did.
    bool renew(const Link& link, Deadline deadline);
    /// The next use asks again who this name means; a link to the same life stays.
    void refresh();
    /// Now and then: drops links that broke while idle, and others than the first that nobody has used for a while, which frees their sockets
    /// and mappings. True when look_after() has something to do: with a refresh interval, to ask the peer whether it is still the one we
    /// know; with a link over a second-best transport, to try the nearer ones.
    bool sweep(Time now, Duration refresh_interval);
    /// May take as long as connecting does.
    void look_after(Time now);
    /// Instead of look_after(), where that cannot be done now.
    void leave_alone() noexcept;
    /// When a link over a second-best transport is worth a try to improve; Time::max(): it is not.
    Time improvable_at();
    /// Tries the transports that are nearer than that of the link, if it is time. The next try comes after twice as long, up to a minute; a
    /// link that held for longer than that starts anew. Transfers in flight finish on the old link.
    void improve(Time now);
    /// There is no link any more, for good. Again, when nobody is in a call: nor one that was borrowed then.
    void close() noexcept;
    /// Since when nobody has used it and there is no link, seen at a sweep; Time::max() if that is not so. `dealt`: somebody once did.
    Time unused_since(bool& dealt);

private:
    friend class SessionTable;

    class Opening;
    /// A link for what the first one does not carry.
    struct Other {
        std::shared_ptr<Link> link;
        Time used;
    };
    using Dropped = std::vector<std::shared_ptr<Link>>;  // to let go of outside the lock

    /// Until there is a link that works and meets the need, or none and nobody else is connecting.
    Result<std::shared_ptr<Link>> wait_for_turn(const Need& need, Deadline deadline) MC_REQUIRES(mutex_);
    std::shared_ptr<Link> current(const Need& need) MC_REQUIRES(mutex_);
    Result<std::shared_ptr<Link>> find(Deadline deadline, const Need& need, Incarnation* life_before);
    /// Keeps a new link as the first one or beside it, and none to another life of the peer.
    void keep(const std::shared_ptr<Link>& link, bool first, Dropped& dropped) MC_REQUIRES(mutex_);
    /// Callers deal with this life from now on. `opened`: they need not be told.
    void begin_life(Incarnation life, bool opened) MC_REQUIRES(mutex_);
    /// `before`: the life that callers dealt with when the link was found.
    Result<std::shared_ptr<Link>> check_life(std::shared_ptr<Link> link, Incarnation& life, Incarnation before);
    void drop(const std::shared_ptr<Link>& link, Dropped& dropped) MC_REQUIRES(mutex_);
    /// After every change of what borrow() goes by.
    void publish() noexcept MC_REQUIRES(mutex_);
    void note_opened(const Link& link, Time now) MC_REQUIRES(mutex_);
    Result<std::shared_ptr<Link>> connect(const Need& need, Deadline deadline);

    const std::string name_;
    std::atomic<SegmentId> id_{-1};  // given out by the table when asked for
    DescriptorSource& source_;
    LinkTable& links_;
    const SessionPolicy policy_;

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::shared_ptr<Link> link_ MC_GUARDED_BY(mutex_);  // the first one, for whatever it carries
    std::vector<Other> others_ MC_GUARDED_BY(mutex_);   // to the same life, over another transport each
    Snapshot<std::shared_ptr<Link>> ready_{links_.users(), std::make_unique<const std::shared_ptr<Link>>()};  // link_, or null: ask
    std::atomic<Link*> lent_{nullptr};                                                                        // the same for borrow()
    Incarnation life_ MC_GUARDED_BY(mutex_);
    std::atomic<uint64_t> opened_{0};  // life_, if somebody opened the segment in it: then that is news for nobody. Set under the lock
    const CallerKey caller_;
    bool recheck_ MC_GUARDED_BY(mutex_) = false;  // ask again who the name means
    bool opening_ MC_GUARDED_BY(mutex_) = false;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    Time failed_until_ MC_GUARDED_BY(mutex_){};  // negative cache
    Error last_error_ MC_GUARDED_BY(mutex_);
    Time checked_ MC_GUARDED_BY(mutex_) = Clock::now();  // when the peer last said who it is
    bool check_due_ MC_GUARDED_BY(mutex_) = false;
    bool looked_after_ MC_GUARDED_BY(mutex_) = false;  // or about to be
    Time improve_at_ MC_GUARDED_BY(mutex_) = Time::max();
    Duration improve_pause_ MC_GUARDED_BY(mutex_){0};  // before the next try
    Time improved_ MC_GUARDED_BY(mutex_){};            // when a try last worked
    std::atomic<bool> used_{true};                     // since the last sweep
    bool dealt_ MC_GUARDED_BY(mutex_) = false;         // there was a life
    Time unused_since_ MC_GUARDED_BY(mutex_) = Time::max();
};

/// All sessions of an engine, by name and by id. Those that nobody uses and that lead nowhere are forgotten after a while, unless their id
/// was given out. Thread-safe.
class SessionTable {
public:
    SessionTable(DescriptorSource& source, Router& router, SessionPolicy policy) : source_(source), links_(router), policy_(policy) {}

    /// Finds or makes; never connects.
    Result<std::shared_ptr<Session>> get(const std::string& name);
    Result<std::shared_ptr<Session>> get(SegmentId id) const;
    /// One that is there, or null. Without a count: it is good for as long as a section() lasts that began before.
    Session* find(std::string_view name) const;
    /// What a thread found last: who transfers mostly does so to the same peer again.
    struct Last {
        uint64_t list = 0;  // in which it was found
        std::string name;
        Session* session = nullptr;
        CallerLife* caller = nullptr;  // what the thread is there, once it was asked for

        CallerLife& as_caller() {
            if (caller == nullptr) caller = session->caller().get();
            return *caller;
        }
    };
    /// The same without a lock where it is the one found last.
    Session* find(std::string_view name, Last& last) const {
        if (last.list == list_.load(std::memory_order_seq_cst) && last.name == name) [[likely]]
            return last.session;
        return find_anew(name, last);
    }
    /// Sessions that were found, and links that were borrowed of any of them, are good in here.
    [[nodiscard]] Quiescence::Section section() noexcept { return links_.users().enter(); }
    /// Gives it an id for good. The first one asked for (our own) is 0.
    SegmentId id_of(const std::shared_ptr<Session>& session);
    void for_each(const std::function<void(const std::shared_ptr<Session>&)>& visit) const;
    /// Closes all of them, and breaks every link that somebody holds. Who lets go of the result may have to wait a moment for the peers.
    std::vector<std::shared_ptr<Link>> close(const Error& reason);
    /// After close(), when nobody is in a call: lets go of links that were borrowed then.
    void let_go();
    /// Forgets those that are of no use any more. After their sweep().
    void forget_unused(Time now);
    size_t size() const;

private:
    /// A session that may still be in use.
    struct Forgotten {
        std::shared_ptr<Session> session;
        Quiescence::Open used_by;
    };

    Session* find_anew(std::string_view name, Last& last) const;

    DescriptorSource& source_;
    LinkTable links_;
    const SessionPolicy policy_;
    mutable SharedMutex mutex_;
    std::map<std::string, std::shared_ptr<Session>, std::less<>> by_name_ MC_GUARDED_BY(mutex_);
    std::vector<std::shared_ptr<Session>> by_id_ MC_GUARDED_BY(mutex_);
    std::vector<Forgotten> forgotten_ MC_GUARDED_BY(mutex_);
    /// Moves whenever a name goes: until then one that was found means the same. No two tables ever have the same number. Changed under the lock,
    /// before it is seen who may still use what went.
    std::atomic<uint64_t> list_{unique_number()};
};

}  // namespace mooncake
